"""Azure: sign-in, the catalogue of GPU sizes with successors of retired ones, and prices.

Importing this sends no request and loads no package of Azure's.
"""

from distdl_jupyter.azure.vm_sizes import VmSize, catalogue, catalogue_date, find, vm_sizes

__all__ = ["VmSize", "catalogue", "catalogue_date", "find", "vm_sizes"]
