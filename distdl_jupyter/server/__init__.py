"""The Jupyter server extension: clusters, jobs and their live streams over HTTP, for JupyterLab and other clients.

A thin adapter over ``client`` without state, torch or pickles. All addresses are below ``/distdl/api``.
"""
