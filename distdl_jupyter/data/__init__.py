"""A job's data and packages on their way to its nodes, and its outputs on their way back.

``sources`` lists what a job reads and signs requests, ``staging`` answers the nodes, ``outputs`` sends files to Blob:
these run where the job was submitted. ``stager`` runs on each node, with ``stores`` and ``packages``; it needs nothing
but the standard library and obstore.
"""
