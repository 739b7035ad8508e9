"""A module that is missing is imported."""

import probe
import there_is_no_such_module
