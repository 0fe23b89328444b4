"""Checks and advice before a job starts: ``check(draft, spec)`` returns findings, ``report`` also the passed checks.

Reads source texts, the results of capture and the attributes of imported modules; no user code is run.
"""

from distdl_jupyter.core.findings import Check, Finding
from distdl_jupyter.preflight.advice import Advice, PastJob, Request
from distdl_jupyter.preflight.engine import advise, check, refuse, report

__all__ = ["Advice", "Check", "Finding", "PastJob", "Request", "advise", "check", "refuse", "report"]
