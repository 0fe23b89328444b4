"""The magics: ``%%distributed`` runs a cell on many processes, ``%dist_...`` run commands.

A thin adapter over ``capture``, ``client`` and ``widgets``: it parses, calls and shows.
"""

from distdl_jupyter.magic.extension import load

__all__ = ["load"]
