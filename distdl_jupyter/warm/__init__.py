"""Warm starts on this machine: an idle template process preloads the modules that jobs import, and forks supervisors.

A warm start must not affect the job: if in doubt, the job starts cold and its log says why.
``start_job`` is the entry point. ``start`` has the submitter's side of the socket, ``template`` the template's side.
"""

from distdl_jupyter.warm.start import start_job

__all__ = ["start_job"]
