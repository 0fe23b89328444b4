"""The base layer: what a job is, and how it is stored and read.

Standard library only. Nothing here may depend on backends, clusters, processes or front ends.
"""
