"""A model checker for small jobs: every order of messages, failures and deadlines."""
