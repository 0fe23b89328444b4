"""All jobs of a data directory as rows, read anew only where something can have changed.

The row of a job that has ended is kept on disk (see ``listing.ended``); the others are followed. Safe to call from any
thread. It knows rows only: how they look is for others to say.
"""

from distdl_jupyter.listing.ended import Listed
from distdl_jupyter.listing.jobs import Listing, here

__all__ = ["Listed", "Listing", "here"]
