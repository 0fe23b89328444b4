"""Hooks of a rank for the frameworks that training code uses, one module for each subject.

No framework is imported for them, and a hook that fails becomes a note instead of an error of the user's code. A module
that uses private names of a third-party package lists them in its docstring.
"""
