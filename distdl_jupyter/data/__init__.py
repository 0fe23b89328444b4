"""Copies a job's data and packages to its nodes, and its outputs to Blob storage.

``sources`` lists data sources and signs requests, ``staging`` responds to the nodes, and ``outputs`` uploads files to
Blob: these run where the job was submitted. ``stager`` runs on each node, with ``stores`` and ``packages``; it only
needs the standard library and obstore.
"""
