"""What is known of Azure without asking it: the catalogue of GPU sizes. Opens no connection and knows no price."""

from distdl_jupyter.azure.successors import Successor, successor, successor_of
from distdl_jupyter.azure.vm_size import VmSize
from distdl_jupyter.azure.vm_sizes import catalogue, catalogue_date, find, vm_sizes

__all__ = ["Successor", "VmSize", "catalogue", "catalogue_date", "find", "successor", "successor_of", "vm_sizes"]
