"""Azure Blob on this machine: Azurite, Microsoft's own emulator, over TLS, and a proxy before it that does harm.

Azurite proves what is sent and how answers are understood. It checks a shared access signature's rights, times and
scope, but neither its IP range nor roles, and it knows no hierarchical namespace.
"""
