"""The display data of a job, shared by the panel in a notebook and the pages of JupyterLab.

Pure functions from job views to frozen dataclasses; the TypeScript types of the pages are generated from these. They
do not depend on widgets, the server or files.
"""
