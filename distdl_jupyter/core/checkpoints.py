"""The checkpoints of a job: what training code left in ``checkpoint_dir()``, each with its step, metrics and size.

Training code names its files as it likes, so a checkpoint is recognized by its form: a file, a file in pieces, or a
folder whose files belong together (the parts that ranks write, a model with its configuration, a folder with a step in
its name). Its step stands in its name (``step-400.pt``, ``epoch=3-step=400.ckpt``, ``checkpoint-400``,
``global_step400``); else it is the newest step that ranks had reported when it was written.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distdl_jupyter.core import events
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.humanize import count, listing
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.store import JobFolder, is_id
from distdl_jupyter.worker.hooks import frameworks

if TYPE_CHECKING:
    from distdl_jupyter.core.curves import Row
    from distdl_jupyter.core.options import Keep

#: Entries of the folder that are looked at, and bytes of a file that may name the newest checkpoint.
_MOST, _SMALL = 20_000, 4096
_STEP = re.compile(r"(?:global_?step|step|iter(?:ation)?|checkpoint|ckpt)[-_=]?(\d{1,15})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,15}")
#: A file that is on its way to its name, as ``path.with_suffix(".new")``, and one of no meaning of its own.
_UNFINISHED = re.compile(r".*(?:\.(?:new|tmp|temp|part|incomplete)|~)|\..*")
#: A second name of the newest checkpoint: ``last.pt``.
_NEWEST = re.compile(r"(?:last|latest|newest|current)(?:[-_.]|$)", re.IGNORECASE)
#: Files beside checkpoints that are none.
_BESIDE = re.compile(r".*\.(?:txt|json|ya?ml|toml|csv|log|md|py|html|png|svg)", re.IGNORECASE)
_SHARD, _WHOLE = re.compile(frameworks.SHARDS), re.compile(frameworks.WHOLE_FOLDER)
_PIECE = re.compile(frameworks.PIECES)
#: Seconds after which a checkpoint is taken to be written to its end.
_SETTLED = 30.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint. ``path`` is relative to ``checkpoint_dir()``, which is ``root``; "." for that folder itself.

    ``parts`` are the files or folders that make it up, relative to the same; ``size`` is in bytes, ``modified`` in
    epoch seconds. ``step`` is None where neither its name nor a report says it, and ``is_named`` where its name does.
    ``metrics`` are means over ranks at the newest reported step up to its own (of a long job: of the steps that one
    point of the curve stands for).
    """

    root: Path
    path: str
    parts: tuple[str, ...]
    size: int
    modified: float
    files: int = 1
    step: float | None = None
    is_named: bool = False
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    @property
    def location(self) -> str:
        """Where it lies on this machine."""
        return str(self.root if self.path == "." else self.root / self.path)

    @property
    def is_alias(self) -> bool:
        """Whether its name says no step, but that it is the newest one (``last.pt``)."""
        return not self.is_named and _NEWEST.match(self.name) is not None

    @property
    def load_code(self) -> str:
        """Lines of Python that load it on one process."""
        place = Path(self.location)
        names = [one.name for one in place.iterdir()] if place.is_dir() else [*self.parts, self.name]
        template = next((code for form, code in frameworks.LOADS if any(re.fullmatch(form, one) for one in names)), "")
        return (template or "checkpoint = {path!r}").format(path=str(place), folder=str(place.parent), tag=place.name)

    @property
    def moment(self) -> float | str:
        """What it has in common with what was written at the same step: that, or its path where that is not known."""
        return self.path if self.step is None else self.step

    @property
    def order(self) -> tuple[float, float]:
        """Newer ones are larger: by step, then by time."""
        return (-1.0 if self.step is None else self.step, self.modified)


def inherited(folder: JobFolder) -> SeriesBook:
    """Return the curves of the jobs from whose checkpoints this one goes on, as far as they are there.

    What it reports itself takes the place of the same and later steps.
    """
    earlier: list[JobFolder] = []
    now = folder
    with contextlib.suppress(DistDLError):  # removed, or not to be read
        while is_id(id_ := now.spec().resumed_from) and id_ not in {one.id for one in earlier}:
            now = JobFolder(now.path.with_name(id_))
            earlier.append(now)
    book = SeriesBook()
    for one in reversed(earlier):
        for event in events.read_all(one.events)[0]:
            book.apply(event)
        book.apply({"type": "restart"})
    return book


def of_job(folder: JobFolder, book: SeriesBook) -> list[Checkpoint]:
    """Return a job's checkpoints, the newest first; ``book`` has its curves, behind those that it has ``inherited``."""
    bands = {name: book.band(name).rows for name in book.names}
    placed = [_placed(one, bands) for one in found(folder.checkpoints)]
    return sorted(placed, key=lambda one: one.order, reverse=True)


def _placed(one: Checkpoint, curves: Mapping[str, Sequence[Row]]) -> Checkpoint:
    """Return a checkpoint with its step and the metrics at that step."""
    known = {name: _rows_until(rows, one) for name, rows in curves.items()}
    reported = [rows[-1].step for rows in known.values() if rows]
    step = one.step if one.is_named else max(reported, default=None)
    metrics = {name: rows[-1].mean for name, rows in known.items() if rows and rows[-1].mean is not None}
    return replace(one, step=step, metrics=metrics)


def _rows_until(rows: Sequence[Row], one: Checkpoint) -> list[Row]:
    if one.is_named:
        return [row for row in rows if row.step <= (one.step or 0)]
    return [row for row in rows if row.time <= one.modified]


# what is there ----------------------------------------------------------------------------------


def found(root: Path) -> Iterator[Checkpoint]:
    """Yield the checkpoints in a folder without their metrics, in no order. Links are not followed."""
    yield from _below(root, "")


def _below(root: Path, inside: str) -> Iterator[Checkpoint]:
    try:
        with os.scandir(root / inside) as entries:
            known = list(itertools.islice(entries, _MOST))
    except OSError:  # not there, or gone meanwhile
        return
    files = [one for one in known if one.is_file(follow_symlinks=False)]
    if _belongs_together(one.name for one in files) or (inside and files and step_in(inside) is not None):
        yield from _whole(root, inside, files)
        if inside:
            return
        files = []
    for name, pieces in _grouped(files).items():
        yield _checkpoint(root, _join(inside, name), [_join(inside, one.name) for one in pieces], pieces)
    for one in known:
        if one.is_dir(follow_symlinks=False) and not _UNFINISHED.fullmatch(one.name):
            yield from _below(root, _join(inside, one.name))


def _belongs_together(names: Iterable[str]) -> bool:
    return any(_SHARD.fullmatch(name) or _WHOLE.fullmatch(name) for name in names)


def _whole(root: Path, inside: str, files: Sequence[os.DirEntry[str]]) -> Iterator[Checkpoint]:
    """Yield a folder as one checkpoint; of ``checkpoint_dir()`` itself only the files that are right in it."""
    if not inside:
        yield _checkpoint(root, ".", [one.name for one in files], files)
        return
    below: list[os.stat_result] = []
    for place, _, names in os.walk(root / inside):
        for name in names:
            with contextlib.suppress(OSError):
                below.append((Path(place) / name).lstat())
    if below:
        yield _made(root, inside, (inside,), below)


def _grouped(files: Iterable[os.DirEntry[str]]) -> dict[str, list[os.DirEntry[str]]]:
    """Return the checkpoints among files of one folder by name: a file each, or its pieces."""
    groups: dict[str, list[os.DirEntry[str]]] = {}
    for one in files:
        if _UNFINISHED.fullmatch(one.name) or _BESIDE.fullmatch(one.name) or _is_pointer(one):
            continue
        piece = _PIECE.fullmatch(one.name)
        groups.setdefault(piece[1] if piece else one.name, []).append(one)
    return groups


def _is_pointer(one: os.DirEntry[str]) -> bool:
    """Say whether a file is small and has no suffix, as those that name the newest checkpoint."""
    with contextlib.suppress(OSError):
        return "." not in one.name and one.stat(follow_symlinks=False).st_size <= _SMALL
    return False


def _checkpoint(root: Path, path: str, parts: Sequence[str], files: Sequence[os.DirEntry[str]]) -> Checkpoint:
    known = []
    for one in files:
        with contextlib.suppress(OSError):
            known.append(one.stat(follow_symlinks=False))
    return _made(root, path, tuple(parts), known)


def _made(root: Path, path: str, parts: tuple[str, ...], known: Sequence[os.stat_result]) -> Checkpoint:
    step = step_in(path)
    size, modified = sum(one.st_size for one in known), max((one.st_mtime for one in known), default=0.0)
    return Checkpoint(root, path, parts, size, modified, len(known), step, is_named=step is not None)


def step_in(path: str) -> float | None:
    """Return the step that a path names, None for none: its last part that has one."""
    for part in reversed(path.split("/")):
        if steps := _STEP.findall(part):
            return float(steps[-1])
        if _NUMBER.fullmatch(part.partition(".")[0]):
            return float(part.partition(".")[0])
    return None


def _join(inside: str, name: str) -> str:
    return f"{inside}/{name}" if inside else name


# one of them ------------------------------------------------------------------------------------


def choose(known: Sequence[Checkpoint], step: float | None = None, path: str | None = None) -> Checkpoint:
    """Return the newest checkpoint, or the one of a step or path. Raises InvalidSpec, which says which there are."""
    if not known:
        raise InvalidSpec(
            "The job has no checkpoint.",
            code="no-checkpoint",
            field="step",
            hint="Save checkpoints in distdl_jupyter.checkpoint_dir().",
        )
    fitting = [
        one for one in known if (step is None or one.step == step) and (path is None or one.path == path.rstrip("/"))
    ]
    if not fitting:
        steps = sorted({one.step for one in known if one.step is not None})
        hint = f"It has checkpoints of steps {listing([count(one) for one in steps[-20:]])}." if steps else ""
        if step is not None:
            raise InvalidSpec(
                f"The job has no checkpoint of step {count(step)}.",
                code="checkpoint-step-unknown",
                field="step",
                hint=hint,
            )
        raise InvalidSpec(
            f"The job has no checkpoint {path!r}.", code="checkpoint-path-unknown", field="path", hint=hint
        )
    return next((one for one in fitting if not one.is_alias), fitting[0])


def copy(chosen: Checkpoint, target: Path, copy_file: Callable[[str, str], str]) -> None:
    """Copy one checkpoint to another ``checkpoint_dir()``, as the newest one there.

    What names the newest one names this one then: a second name (``last.pt``), a link, a small file with its name
    (DeepSpeed's ``latest``). Files that belong to no checkpoint come along. Raises OSError.
    """
    root, known = chosen.root, list(found(chosen.root))
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for part in chosen.parts:
        _copy(root / part, target / part, copy_file)
    owned = {part for one in known for part in one.parts}
    for one in known:
        if one.is_alias and _is_like(one, chosen):
            _copy(root / chosen.parts[0], target / one.parts[0], copy_file)
    for place, folders, files in os.walk(root):
        inside = Path(place).relative_to(root)
        folders[:] = [name for name in folders if (inside / name).as_posix() not in owned]
        for name in [*files, *(one for one in folders if (Path(place) / one).is_symlink())]:
            part = (inside / name).as_posix()
            if part not in owned and not _UNFINISHED.fullmatch(name) and not (target / part).exists():
                _copy_beside(Path(place) / name, target / part, chosen, known, copy_file)


def is_unchanged(one: Checkpoint) -> bool:
    """Say whether a checkpoint is still as it was when it was found."""
    now = next((other for other in found(one.root) if other.path == one.path), None)
    return now is not None and (now.size, now.modified, now.files) == (one.size, one.modified, one.files)


def _is_like(one: Checkpoint, other: Checkpoint) -> bool:
    """Say whether one stands beside the other and has its form."""
    place, suffix = one.path.rpartition("/")[0], Path(one.path).suffix
    return (
        one.path != other.path
        and len(one.parts) == len(other.parts) == 1
        and place == other.path.rpartition("/")[0]
        and suffix == Path(other.path).suffix
    )


def _copy(source: Path, target: Path, copy_file: Callable[[str, str], str]) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=copy_file)
    else:
        copy_file(str(source), str(target))


def _copy_beside(
    source: Path, target: Path, chosen: Checkpoint, known: Sequence[Checkpoint], copy_file: Callable[[str, str], str]
) -> None:
    """Copy what is no checkpoint; where it names one, it names the chosen one then."""
    names = {one.name for one in known}
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if source.is_symlink():
        if source.readlink().name in names:
            target.symlink_to(chosen.name)
        return
    if source.stat().st_size <= _SMALL and source.read_bytes().strip().decode("utf-8", "replace") in names:
        target.write_text(chosen.name, encoding="utf-8")
    else:
        copy_file(str(source), str(target))


# which are kept ---------------------------------------------------------------------------------


def superfluous(keep: Keep, known: Sequence[Checkpoint], now: float) -> list[Checkpoint]:
    """Return those that may go: written to their end, and of none of the newest and best steps of their kind.

    Those of one kind differ in numbers alone: ``best.pt`` or a vocabulary beside ``step-400.pt`` stays, and what a
    step has several files of goes or stays with all of them. What a link beside them leads to stays.
    """
    kinds: dict[str, list[Checkpoint]] = {}
    for one in sorted(known, key=lambda one: one.order, reverse=True):
        if not one.is_alias and one.path != ".":
            kinds.setdefault(re.sub(r"\d+", "", one.path), []).append(one)
    found = [one for own in kinds.values() for one in _superfluous(keep, own) if one.modified < now - _SETTLED]
    linked = _linked(found[0].root) if found else []
    return [
        one
        for one in found
        if not any(target.is_relative_to(os.path.realpath(one.root / part)) for part in one.parts for target in linked)
    ]


def _superfluous(keep: Keep, own: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return those beyond what is kept of one kind, the newest first."""
    rated = [one for one in own if keep.metric in one.metrics]
    rated.sort(key=lambda one: one.metrics[keep.metric], reverse=keep.highest)
    newest, best = (list(dict.fromkeys(one.moment for one in found)) for found in (own, rated))
    kept = {*newest[: keep.last], *best[: keep.best]}
    return [one for one in own if one.moment not in kept]


def _linked(root: Path) -> list[Path]:
    """Return what links in a folder lead to."""
    places = (Path(place, name) for place, folders, files in os.walk(root) for name in (*folders, *files))
    return [Path(os.path.realpath(place)) for place in places if place.is_symlink()]


def remove(one: Checkpoint) -> None:
    """Delete a checkpoint; links in it go, not what they lead to. Raises OSError."""
    for part in one.parts:
        place = one.root / part
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
