"""What is found wrong before anything starts: ``check(draft, request)`` returns findings, ``report`` also what passed.

Pure reading of source text and of what capture has noted; nothing of the user's is run.
"""

from distdl_jupyter.preflight.engine import check, report
from distdl_jupyter.preflight.model import Check, Finding, Report

__all__ = ["Check", "Finding", "Report", "check", "report"]
