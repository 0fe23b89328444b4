"""Azure: who asks it, the catalogue of its GPU sizes, what it says of them itself, and what they cost.

What is imported here asks nobody and loads no package of Azure's.
"""

from distdl_jupyter.azure.catalogue_file import catalogue, catalogue_date
from distdl_jupyter.azure.successors import Successor, successor, successor_of
from distdl_jupyter.azure.vm_size import Quota, VmSize
from distdl_jupyter.azure.vm_sizes import find, vm_sizes

__all__ = [
    "Quota", "Successor", "VmSize", "catalogue", "catalogue_date", "find", "successor", "successor_of", "vm_sizes",
]  # fmt: skip
