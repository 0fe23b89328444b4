"""Warm starts on this machine: an idle template process that has imported what jobs import, and forks supervisors.

It must not know what a job computes, and no job may notice it: every doubt ends in a cold start and one sentence why.
``begin`` is the one way in; ``template_client`` is its side of the conversation, ``template`` the other.
"""

from distdl_jupyter.warm.start import begin

__all__ = ["begin"]
