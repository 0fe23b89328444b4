"""Data on its way to the nodes of a job, and outputs on their way back.

It decides what goes where and with which right; ``stager`` carries it out on each node. Azure's packages are
imported when a job names a place in Blob, not before.
"""
