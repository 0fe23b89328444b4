"""The one writer of a job: a small detached program, started alike by a kernel, a server or the command line.

A program, not a library: only ``control`` and ``resume`` are imported by what starts one or finds that one has died.
"""
