VERSION = "helper 1"
