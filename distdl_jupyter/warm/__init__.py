"""Warm starts on this machine: an idle template process that has imported what jobs import, and forks supervisors.

It does not know what a job computes, and no job may notice it: if in doubt, a job starts cold and its log says why.
``begin`` is the entry point; ``start`` is the submitter's side of the socket, ``template`` the other.
"""

from distdl_jupyter.warm.start import begin

__all__ = ["begin"]
