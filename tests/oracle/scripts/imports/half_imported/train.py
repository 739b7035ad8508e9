"""RANK is read, and the first step taken, deep inside of an import that is not over."""

import deep

import probe

probe.done(value=deep.VALUE, names=sorted(name for name in vars(deep) if name.isupper()))
