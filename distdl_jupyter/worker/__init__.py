"""The code inside a rank: it loads the payload, runs it, and reports metrics, progress, results and errors.

It uses only the standard library and ``distdl_jupyter.permissions``, so it can be copied to a host without the rest of
the package. It does not depend on the launcher of the rank or on the reader of its reports.
"""
