"""HTML below a cell: output, values and errors of its ranks.

It is rebuilt for each update, and is what a saved notebook contains.
"""

from __future__ import annotations

from itertools import dropwhile, groupby
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import humanize, theme
from distdl_jupyter.core.printable import printable
from distdl_jupyter.html.page import THEME, page
from distdl_jupyter.ranks.answer import Failures, named, spans, what
from distdl_jupyter.ranks.view import Fold, left_out

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FRAMES = 12


def cell(fold: Fold, failed: Failures | None = None, *, job: str, status: str = "", newest: int | None = None) -> str:
    """Return the HTML of a cell so far; ``status`` is a sentence about running ranks, "" at the end.

    ``job`` is the short id of the ranks' job, ``newest`` the maximum number of rows (None: all stored ones).
    """
    blocks = [
        {
            "ranks": _badge(block.ranks, every=block.ranks == fold.ranks) if len(fold.ranks) > 1 else None,
            "runs": [(stream, [text for _, text in rows]) for stream, rows in groupby(block.rows, lambda row: row[0])],
        }
        for block in fold.blocks(newest)
    ]
    earlier = left_out(fold, job, newest)
    return page(
        "ranks.html", THEME, blocks=blocks, earlier=earlier, failed=failed, failure=_failure(failed), status=status
    )


def values(groups: Sequence[tuple[Sequence[int], Mapping[str, str]]]) -> str:
    """Return values by ranks, (ranks, forms by MIME type) each, equal ones already folded."""
    return page("ranks.html", THEME, values=[(_badge(ranks), _value(forms)) for ranks, forms in groups])


def running(ranks: Sequence[int], done: Sequence[int], seconds: float) -> str:
    """Return the status of a running cell, such as ``Ranks 2-3 still run, 12 s``."""
    left = [rank for rank in ranks if rank not in done] or ranks
    verb = "runs" if len(left) == 1 else "run"
    return f"{named(left).capitalize()}{' still' if done else ''} {verb}, {humanize.duration(seconds)}."


def _badge(ranks: Sequence[int], *, every: bool = False) -> dict[str, str]:
    """Return a badge of ranks as in the log: a single rank in its colour, several or all in grey."""
    if len(ranks) > 1 or every:
        return {"said": spans(ranks), "colour": "", "classes": "dd-rn"}
    number = ranks[0] % len(theme.RANKS)
    colour = f"color-mix(in srgb,var(--dd-rank-{number},{theme.RANKS[number]}) 72%,{THEME['ink']})"
    return {"said": spans(ranks), "colour": colour, "classes": f"dd-rn dd-rank-{number}"}


def _value(forms: Mapping[str, str]) -> dict[str, Any]:
    """Return a value in its richest representation, else as text."""
    pictures = (f"data:{kind};base64,{forms[kind]}" for kind in ("image/png", "image/jpeg") if forms.get(kind))
    plain = forms.get("text/plain", "None")
    lines = [printable(line) for line in plain.split("\n")]
    return {"html": forms.get("text/html", ""), "picture": next(pictures, ""), "lines": lines}


def _failure(failed: Failures | None) -> dict[str, Any] | None:
    if failed is None or failed.interrupted:
        return None
    error = failed.error
    frames = [frame for frame in error.get("frames") or [] if frame.get("kind") != "worker"]
    with_source = [frame for frame in frames if frame.get("source")][-_FRAMES:]
    groups = [*([(failed.alike, "the same error")] if failed.alike else [])]
    groups += [(ranks, reason.partition(":")[0]) for ranks, reason, _ in failed.others]
    short = "; ".join(f"{named(ranks)}: {reason}" for ranks, reason in groups)
    return {
        "what": what(error),
        "hint": error.get("hint", ""),
        # The number of magic lines above the code is not known here.
        "frames": [
            {**frame, "source": list(dropwhile(lambda line: not str(line[1]).strip(), frame["source"]))}
            for frame in with_source
        ],
        "hidden": len(frames) - len(with_source),
        "traceback": str(error.get("traceback", "")).rstrip(),
        "others": f"{humanize.plural(sum(len(ranks) for ranks, _ in groups), 'other rank')} failed too ({short})",
        "rest": failed.rest(),
    }
