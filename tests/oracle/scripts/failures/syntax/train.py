"""A module with a mistake is imported."""

import probe
import broken
