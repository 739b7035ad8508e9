"""User code in virtual time: the classes that `simulate=` names, their disk and their results."""
