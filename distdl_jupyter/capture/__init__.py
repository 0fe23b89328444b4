"""Captures a cell, a function or a script as a ``CapturedCode``, with everything that a job needs.

The package writes pickles but never reads them. It is independent of backends, clusters and processes.
"""

from distdl_jupyter.capture.captured_code import CapturedCode
from distdl_jupyter.capture.cell import capture_cell
from distdl_jupyter.capture.function import capture_function
from distdl_jupyter.capture.notebook import CodeLocation, current_location
from distdl_jupyter.capture.script import capture_script

__all__ = ["CapturedCode", "CodeLocation", "capture_cell", "capture_function", "capture_script", "current_location"]
