"""The Python environment: what it can do (probe, doctor) and how Horovod gets into it.

Knows errors of the core and nothing about jobs, backends or screens.
"""
