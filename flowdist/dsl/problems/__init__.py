"""Problems of a topology: their places in the user's file, their codes, and the page that explains each code.

The compiler collects all problems before it raises. The codes are stable: users and tests refer to them.
"""
