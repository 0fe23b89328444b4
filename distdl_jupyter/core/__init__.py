"""The base layer: what a job is, and how it is stored and read.

Only the standard library and msgspec. Nothing here depends on backends, clusters, processes or front ends.
"""
