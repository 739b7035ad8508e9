NAME = "goes"
