"""The verb `logs`: choosing the logs of this host and of others, searching them, and printing their lines."""
