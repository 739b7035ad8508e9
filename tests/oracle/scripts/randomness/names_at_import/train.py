"""A module makes unique names when it is imported: uuid4, uuid1, secrets, os.urandom."""

import probe

probe.note("first line")
import names

probe.note("imported")
probe.first_step(**{name: value for name, value in vars(names).items() if name.isupper()})
