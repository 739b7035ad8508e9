VALUE = __file__
