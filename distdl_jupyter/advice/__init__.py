"""What to do better before a job starts: pure rules from (request, catalogue, history) to a list of advice.

Knows no screen and asks nobody: the catalogue and the past jobs are given. An advice never changes anything by
itself; ``change`` holds the fields that whoever shows it may apply after a click.
"""

from distdl_jupyter.advice.engine import advise
from distdl_jupyter.advice.model import Advice, Level, PastJob, Request

__all__ = ["Advice", "Level", "PastJob", "Request", "advise"]
