"""Evidence that `control` is right: model checker, property tests, mutation bench, determinism check.

Everything here runs the production code of controller and agents against judges that share no decision with it.
No part of this package is public API.
"""
