"""Hooks for the frameworks that training code uses, with one module per subject.

Hooks do not import frameworks. A hook that fails sends a notice and does not raise an error in the user's code. Each
module that uses private names of a third-party package lists them in its docstring.
"""
