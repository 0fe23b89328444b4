"""Warm starts on this machine: an idle template process preloads the modules that jobs import, and forks supervisors.

It must not affect jobs: if in doubt, a job starts cold, and its log says why.
``begin`` is the entry point; ``start`` is the submitter's side of the socket, ``template`` the other.
"""

from distdl_jupyter.warm.start import begin

__all__ = ["begin"]
