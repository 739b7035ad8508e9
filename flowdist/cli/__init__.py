"""The command line: one file per verb, or for a few alike, in folders by what they do; `shared` imports none of them.

A verb reads options, calls the package that does the work, and prints. It decides nothing about a job. Heavy imports
stand inside functions, so that `--help` is quick.

What a user does wrong is a FlowdistError wherever it is noticed; it ends the verb with a message and an exit code. So
the functions here do not list these errors.
"""
