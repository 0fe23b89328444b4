"""The Python environment: what works in it (doctor) and how Horovod gets into it.

Knows errors of the core and nothing about jobs, backends or screens.
"""
