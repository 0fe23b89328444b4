"""The Jupyter server extension: clusters, jobs and their live streams over HTTP, for JupyterLab and anybody else.

A thin adapter over ``client``: no state of its own, no torch, no pickles. Everything answers under ``/distdl/api``.
"""
