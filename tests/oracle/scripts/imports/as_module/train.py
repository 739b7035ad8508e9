"""`-m package.task`: a package with relative imports, run as a module."""
