"""What was looked at on a cluster's machines, written for people: what is alike on all of them stands in one line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace

from distdl_jupyter.clusters.base import Check, CheckLevel
from distdl_jupyter.core import words

SIGNS: dict[CheckLevel, str] = {"ok": "✓", "info": "·", "warning": "!", "error": "✗"}
#: Hosts that are named one by one in a line of which all is well.
_NAMED = 3
#: Lines of one kind that are all well, at most; beyond, one stands for them.
_MOST_LINES = 8
_ARROW = "→"


def is_red(checks: Iterable[Check]) -> bool:
    """Say whether anything keeps a job from running."""
    return any(check.level == "error" for check in checks)


def folded(checks: Sequence[Check]) -> list[Check]:
    """Return the rows of a table: hosts of which the same is to be said share one, whose ``node`` names them.

    What was looked at keeps its order, and within it what is wrong comes first.
    """
    hosts = list(dict.fromkeys(check.node for check in checks if check.node))
    whats = list(dict.fromkeys(check.what for check in checks))
    ordered = sorted(checks, key=lambda check: (whats.index(check.what), _RANK[check.level]))
    alike: dict[Check, list[str]] = {}
    for check in ordered:
        alike.setdefault(replace(check, node=""), []).append(check.node)
    return _shortened([replace(check, node=_named(check, nodes, hosts)) for check, nodes in alike.items()])


_RANK: dict[CheckLevel, int] = {"error": 0, "warning": 1, "info": 2, "ok": 3}


def _named(check: Check, nodes: Sequence[str], hosts: Sequence[str]) -> str:
    if nodes == [""]:
        return ""
    if len(hosts) > 1 and len(nodes) == len(hosts):
        return f"all {len(hosts)} hosts"
    if check.level in ("ok", "info") and len(nodes) > _NAMED:
        return words.plural(len(nodes), "host")
    return ", ".join(nodes)


def _shortened(rows: Sequence[Check]) -> list[Check]:
    """Of many lines that say the like, such as each host's address, keep the first and a count."""
    found: list[Check] = []
    well: dict[str, list[Check]] = {}
    for row in rows:
        if row.level == "ok":
            well.setdefault(row.what, []).append(row)
    for row in rows:
        like = well.get(row.what, [])
        if row.level != "ok" or len(like) <= _MOST_LINES:
            found.append(row)
        elif row is like[0]:
            found += [row, Check(f"{len(like) - 1} more", row.what, "ok", "likewise")]
    return found


def table(checks: Sequence[Check], width: int = 100) -> str:
    """Return the table for a terminal of so many columns: sign, hosts, what, what was seen; below it the remedy.

    A remedy that is a command is never broken, so that it can be copied.
    """
    if not checks:
        return "Nothing was looked at."
    rows = folded(checks)
    node = max((len(row.node) for row in rows), default=0)
    what = max((len(row.what) for row in rows), default=0)
    indent = " " * (node + what + 6)
    lines = [line for row in rows for line in _lines(row, node, what, indent, width)]
    return "\n".join([*lines, "", summary(checks)])


def _lines(row: Check, node: int, what: int, indent: str, width: int) -> list[str]:
    head = f"{SIGNS[row.level]} {row.node:<{node}}  {row.what:<{what}}  "
    room = max(30, width - len(indent))
    first, *more = textwrap.wrap(row.says, room, break_long_words=False, break_on_hyphens=False) or [""]
    lines = [f"{head}{first}", *(f"{indent}{line}" for line in more)]
    if row.remedy and row.level in ("warning", "error"):
        lines.append(f"{indent}{_ARROW} {row.remedy}")
    return [line.rstrip() for line in lines]


def summary(checks: Iterable[Check]) -> str:
    """Return what the table comes to: ``1 error, 2 warnings.``, ``All is well.``; a shared row counts once."""
    levels = [row.level for row in folded(list(checks))]
    found = [words.plural(levels.count(level), level) for level in ("error", "warning") if level in levels]
    return f"{', '.join(found)}." if found else "All is well."
