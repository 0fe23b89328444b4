"""What is found wrong before anything starts: ``check(draft, request)`` returns findings, ``report`` also what passed.

Reads source text, what capture has noted and the attributes of imported modules; nothing of the user's is run.
"""

from distdl_jupyter.preflight.engine import check, refuse, report
from distdl_jupyter.preflight.model import Check, Finding, Report

__all__ = ["Check", "Finding", "Report", "check", "refuse", "report"]
