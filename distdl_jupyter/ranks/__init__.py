"""Persistent ranks: processes that stay alive between cells and share a namespace, as a kernel does.

They are a job like any other, so they outlive kernel, server and page. Here is the kernel's side; the ranks' side is
``worker.serving``.
"""
