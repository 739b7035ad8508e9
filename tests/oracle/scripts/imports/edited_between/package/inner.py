VERSION = "inner 1"
