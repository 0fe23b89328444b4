"""From what a user wrote (a cell, a function, a script) to everything a job needs: a ``Draft``.

Knows pickles only as a writer; knows no backend, no cluster and no process.
"""

from distdl_jupyter.capture.cell import capture_cell
from distdl_jupyter.capture.draft import Draft
from distdl_jupyter.capture.function import capture_function
from distdl_jupyter.capture.modules import LocalModule
from distdl_jupyter.capture.notebook import Place, here
from distdl_jupyter.capture.script import capture_script

__all__ = ["Draft", "LocalModule", "Place", "capture_cell", "capture_function", "capture_script", "here"]
