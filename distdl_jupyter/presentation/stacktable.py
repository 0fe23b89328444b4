"""The stacks of all ranks as text and as a saved notebook keeps them: side by side, those that differ first.

Newest calls stand on top. The user's own carry their line; calls of libraries in a row are told in one line.
"""

from __future__ import annotations

import itertools
import shutil
from html import escape
from typing import TYPE_CHECKING

from distdl_jupyter.core.stacks import Taken
from distdl_jupyter.core.words import clock, count, duration, plural, ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from distdl_jupyter.core.stacks import Group, RankStacks
    from distdl_jupyter.core.threads import Frame, Thread

_WHY = {"asked": "", "stall": ", taken because of no progress", "hang": ", taken before the job was stopped as hung",
        "time": ", taken when the job's time was over"}  # fmt: skip
#: Columns of characters: the least that one needs, and what is between two.
_NARROWEST, _BETWEEN = 44, 3
#: Threads beside the main one that are shown of a rank.
_THREADS = 6


class StacksShown(Taken):
    """Stacks that show themselves; ``width`` of the text is the terminal's."""

    def __repr__(self) -> str:
        return text(self, shutil.get_terminal_size((120, 24)).columns)

    def _repr_html_(self) -> str:
        return html(self)


def shown(taken: Taken) -> StacksShown:
    """Return the same stacks as a value that shows itself."""
    return StacksShown(taken.number, taken.t, taken.why, taken.ranks, taken.missing)


def text(taken: Taken, width: int = 120) -> str:
    """Return the stacks in columns as far as ``width`` has room for them, else below each other."""
    blocks = [_block(taken, group) for group in taken.groups()]
    across = max(1, min(len(blocks), (width + _BETWEEN) // (_NARROWEST + _BETWEEN)))
    column = (width + _BETWEEN) // across - _BETWEEN
    lines = [*_head(taken), ""]
    for at in range(0, len(blocks), across):
        lines += [*_beside(blocks[at : at + across], column), ""]
    return "\n".join(lines).rstrip()


def html(taken: Taken) -> str:
    """Return the stacks as an HTML table with one column for each group of ranks. Everything is escaped."""
    cells = "".join(f'<td style="text-align:left;vertical-align:top">{_html_block(taken, one)}</td>'
                    for one in taken.groups())  # fmt: skip
    head = "".join(f"<div>{escape(line)}</div>" for line in _head(taken))
    return f"<div>{head}<table><tbody><tr>{cells}</tr></tbody></table></div>"


def _head(taken: Taken) -> list[str]:
    many = len(taken.ranks) + len(taken.missing)
    lines = [f"Stacks of {plural(many, 'rank')} at {clock(taken.t)}{_WHY.get(taken.why, '')}"]
    if taken.sentence:
        lines.append(f"{taken.sentence[0].upper()}{taken.sentence[1:]}.")
    alike: dict[str, list[int]] = {}
    for rank, why in sorted(taken.missing.items()):
        alike.setdefault(why, []).append(rank)
    return lines + [f"{ranks(who).capitalize()} gave none: {why}" for why, who in alike.items()]


def _block(taken: Taken, group: Group) -> list[str]:
    return [_title(taken, group), *_lines(taken, group)]


def _lines(taken: Taken, group: Group) -> Iterator[str]:
    first = taken.ranks[group.ranks[0]]
    yield from _calls(group.thread)
    others = first.others
    with_own = [one for one in others if one.own is not None]
    for thread in with_own[:_THREADS]:
        yield f"another thread{f' ({thread.name})' if thread.name else ''}:"
        yield from (f"  {line}" for line in _calls(thread))
    rest = len(others) - len(with_own[:_THREADS])
    if rest:
        yield f"and {plural(rest, 'thread')} of libraries"


def _title(taken: Taken, group: Group) -> str:
    many = [taken.ranks[rank] for rank in group.ranks]
    return f"{ranks(group.ranks).capitalize()}: {_how(many)}".rstrip(": ")


def _how(many: Sequence[RankStacks]) -> str:
    first = many[0]
    states = ", ".join(dict.fromkeys(one.state for one in many if one.state))
    silent = min((one.silent for one in many if one.silent is not None), default=None)
    parts = [states, f"step {count(first.step)}" if first.step is not None else "",
             f"silent for {duration(silent)}" if silent is not None else ""]  # fmt: skip
    return ", ".join(part for part in parts if part)


def _calls(thread: Thread) -> Iterator[str]:
    frames = list(thread.frames)
    while frames and frames[-1].kind == "worker":
        frames.pop()
    if not frames:
        yield "no code of the job"
    for own, run in itertools.groupby(frames, lambda frame: frame.own):
        if own:
            for frame in run:
                yield f"{frame.place}, in {frame.function}"
                if frame.source:
                    yield f"    {frame.source}"
        else:
            yield _folded(list(run))


def _folded(frames: list[Frame]) -> str:
    newest = frames[0]
    more = f" and {plural(len(frames) - 1, 'call')} below" if len(frames) > 1 else ""
    return f"· {newest.place}, in {newest.function}{more}"


def _beside(blocks: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    for row in itertools.zip_longest(*blocks, fillvalue=""):
        yield (" " * _BETWEEN).join(_cut(cell, width).ljust(width) for cell in row).rstrip()


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _html_block(taken: Taken, group: Group) -> str:
    differs = set(group.ranks) <= set(taken.differ)
    title = escape(_title(taken, group))
    body = "\n".join(
        f'<span style="opacity:0.6">{escape(line)}</span>' if line.lstrip().startswith("·") else escape(line)
        for line in _lines(taken, group)
    )
    return f'<div>{f"<b>{title}</b>" if differs else title}</div><pre style="margin:0">{body}</pre>'
