"""The supervisor, the only writer of a job: a detached process that a kernel, a server or the command line starts.

Other packages import only ``control`` (to start one) and ``resume`` (to replace one that died).
"""
