"""The command line: one file per verb, in folders by what the verb does; `shared` imports none of them.

A verb reads options, calls the package that does the work, and prints. It decides nothing about a job. Heavy imports
stand inside functions, so that `--help` is quick.
"""
