"""Azure: sign-in, the catalogue of GPU VM sizes with successors of retired sizes, and prices.

Importing this package sends no request and imports no package of Azure.
"""

from distdl_jupyter.azure.vm_sizes import VmSize, find_size, get_catalogue_date, load_catalogue, vm_sizes

__all__ = ["VmSize", "find_size", "get_catalogue_date", "load_catalogue", "vm_sizes"]
