"""A program: pytest in a process whose cluster forks its ranks, as a warm supervisor does. Arguments are pytest's.

The last argument is the filler of ``warm.fork.ArgvBuffer``. At the end it prints how many programs were forked, and why
others were not.
"""

import os
import sys
from typing import ClassVar

import pytest

from distdl_jupyter.node import job as node_job
from distdl_jupyter.warm.fork import ArgvBuffer, Forker
from distdl_jupyter.warm.preload import Recorder


class Counting(Forker):
    forked = 0
    why_not: ClassVar[set[str]] = set()

    def __call__(self, arguments, options):
        process = super().__call__(arguments, options)
        Counting.forked += process is not None
        Counting.why_not |= set(node_job.fork_failures)
        return process


if __name__ == "__main__":
    node_job.fork = Counting(ArgvBuffer(), dict(os.environ), Recorder())
    code = pytest.main(sys.argv[1:-1])
    print(f"{Counting.forked} programs were forked", *Counting.why_not, sep="; ")
    sys.exit(code)
