"""A job as users see it: plain data, the same for the panel in a notebook and for the pages of JupyterLab.

Pure functions from job views to frozen dataclasses; the TypeScript types of the pages are generated from these. Knows
no widget, no server and no file.
"""
