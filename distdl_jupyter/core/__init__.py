"""The ground floor: what a job is, how it is written down and how it is read.

Standard library only. Nothing here may know a backend, a cluster, a process or a screen.
"""
