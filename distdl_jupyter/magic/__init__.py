"""The magics: ``%%distributed`` runs a cell on many processes, ``%dist_...`` run commands.

A thin adapter over ``capture``, ``client`` and ``widgets``: it parses the line, makes the call and displays the result.
"""

from distdl_jupyter.magic.extension import load

__all__ = ["load"]
