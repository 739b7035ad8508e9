"""Explorer: a model checker that tries every order of messages, failures and deadlines of a small job."""
