"""Checks and advice before a job starts: ``check(draft, spec)`` returns findings, ``report`` also what passed.

Reads source text, what capture has noted and the attributes of imported modules; none of the user's code is run.
"""

from distdl_jupyter.core.findings import Check, Finding
from distdl_jupyter.preflight.advice import Advice, PastJob, Request
from distdl_jupyter.preflight.engine import Report, advise, check, refuse, report

__all__ = ["Advice", "Check", "Finding", "PastJob", "Report", "Request", "advise", "check", "refuse", "report"]
