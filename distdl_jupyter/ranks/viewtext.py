"""What a cell's ranks printed and how it failed, as plain text: for terminals and for readers without HTML."""

from __future__ import annotations

from distdl_jupyter.core.humanize import plural
from distdl_jupyter.ranks.view import Fold, spans
from distdl_jupyter.ranks.viewerrors import Failures


def text(fold: Fold, failed: Failures | None, *, job: str, newest: int | None = None) -> str:
    """Return a line such as ``[0-3] loss 0.31`` for each row, then the failure. ``job`` is the ranks' short id."""
    blocks = fold.blocks(newest)
    heads = [f"[{spans(block.ranks)}] " if len(fold.ranks) > 1 else "" for block in blocks]
    lines = [f"{head}{text}" for head, block in zip(heads, blocks, strict=True) for _, text in block.rows]
    earlier = left_out(fold, job, newest)
    return "\n".join([*([earlier] if earlier else []), *lines, *(_failure(failed) if failed else [])])


def left_out(fold: Fold, job: str, newest: int | None = None) -> str:
    """Return the sentence about lines that are not shown, "" when all are."""
    missing = fold.left_out(newest)
    return (
        f"{plural(missing, 'earlier line')} not shown; print the whole log with %dist_logs {job}" if missing > 0 else ""
    )


def _failure(failed: Failures) -> list[str]:
    if failed.interrupted:
        return [failed.sentence()]
    hint = str(failed.error.get("hint", ""))
    trace = str(failed.error.get("traceback", "")).rstrip().splitlines()
    return [f"{failed.sentence()} {hint}".strip(), *trace, *failed.rest()]
