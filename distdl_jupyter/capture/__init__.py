"""From what a user wrote (a cell, a function, a script) to everything a job needs: a ``CapturedCode``.

Knows pickles only as a writer; knows no backend, no cluster and no process.
"""

from distdl_jupyter.capture.captured_code import CapturedCode
from distdl_jupyter.capture.cell import capture_cell
from distdl_jupyter.capture.function import capture_function
from distdl_jupyter.capture.modules import LocalModule
from distdl_jupyter.capture.notebook import CodeLocation, here
from distdl_jupyter.capture.script import capture_script

__all__ = ["CapturedCode", "CodeLocation", "LocalModule", "capture_cell", "capture_function", "capture_script", "here"]
