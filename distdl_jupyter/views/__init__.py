"""The display data of jobs, for panels in notebooks and pages of JupyterLab: pure functions and frozen dataclasses.

The pages' TypeScript types are generated from the dataclasses.
"""
