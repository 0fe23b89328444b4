"""The Jupyter server extension: clusters, jobs and their live streams over HTTP, for JupyterLab and other clients.

A thin, stateless adapter over ``client`` that uses neither torch nor pickles. All addresses are below ``/distdl/api``.
"""
