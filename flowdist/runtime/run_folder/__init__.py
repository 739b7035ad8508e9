"""The folder of a run: its files, logs, journal, and what is read from them."""
