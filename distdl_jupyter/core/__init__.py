"""The base layer: data classes of jobs, and how jobs are stored and read.

It uses only the standard library and msgspec, and does not depend on backends, clusters, processes or front ends.
"""
