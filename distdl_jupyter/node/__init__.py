"""The agent that runs next to the ranks on another machine: it starts them, forwards their output, and stops them.

Like the worker, it is self-contained and uses only the standard library, because both are copied to machines on which
this package is not installed. It does not depend on events, views or cluster types.
"""
