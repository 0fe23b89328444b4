"""``distdl submit --batchai-job job.json``: a job of Azure Batch AI, run or only explained."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a Batch AI job to those of ``distdl submit``."""
    parser.add_argument("--batchai-job", metavar="JOB.JSON", help="run the job defined in this Azure Batch AI job file")
    parser.add_argument("--batchai-mount", action="append", default=[], metavar="NAME=PLACE",
                        help="new path for one of its mounts")  # fmt: skip
    parser.add_argument("--explain", action="store_true", help="show how each field is converted, and start nothing")


def explain(chosen: argparse.Namespace) -> int:
    """Print the table; 0 when the job could start."""
    from distdl_jupyter.compat import batchai

    explanation = batchai.explain(chosen.batchai_job, batchai_mounts=_mounts(chosen))
    print(explanation)
    return 0 if explanation.ready else 1


def draft(chosen: argparse.Namespace, options: dict[str, Any]) -> tuple[CapturedCode, dict[str, Any]]:
    """Return the job as captured code with its options, where those given win. Raises InvalidSpec."""
    from distdl_jupyter.compat import batchai

    return batchai.draft(chosen.batchai_job, batchai_mounts=_mounts(chosen), options=options)


def _mounts(chosen: argparse.Namespace) -> dict[str, str]:
    return {name: where for name, _, where in (word.partition("=") for word in chosen.batchai_mount)}
