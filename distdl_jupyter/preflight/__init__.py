"""Checks and advice before a job starts: ``check(draft, spec)`` returns findings, ``report`` also the passed checks.

The checks read source texts, captured code and attributes of imported modules. They run no user code.
"""

from distdl_jupyter.core.errors import Check, Finding
from distdl_jupyter.preflight.advice import Advice, PastJob, Request
from distdl_jupyter.preflight.engine import advise, check, raise_errors, report

__all__ = ["Advice", "Check", "Finding", "PastJob", "Request", "advise", "check", "raise_errors", "report"]
