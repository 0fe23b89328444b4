"""The code inside a rank: it loads the payload, runs it, and reports metrics, progress, results and errors.

It uses only the standard library and ``distdl_jupyter.permissions``, so it can be copied to a host without the other
packages. Nothing here depends on what started the rank or on what reads its reports.
"""
