VALUE = "in a namespace"
