"""Evidence that `control` is right: model checker, property tests, mutation bench, determinism check.

Everything here runs the production code of controller and agents, and compares what it does with judges that share no
code with its decisions.
"""
