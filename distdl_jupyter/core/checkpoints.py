"""Find the checkpoints that training code saved in ``checkpoint_dir()``, with their steps, metrics and sizes.

Training code can use any file names, so a checkpoint is recognized by its form: a file, a file in parts, or a folder
whose files belong together (shards written by ranks, a model with its configuration, a folder with a step in its name).
The step is taken from the name (``step-400.pt``, ``epoch=3-step=400.ckpt``, ``checkpoint-400``, ``global_step400``).
Without one, it is the newest step that ranks had reported when the checkpoint was written.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from distdl_jupyter.core import events
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.humanize import count, listing
from distdl_jupyter.core.options import KeepRule
from distdl_jupyter.core.series import MetricStore, Row
from distdl_jupyter.core.store import JobFolder, is_id
from distdl_jupyter.worker.hooks import frameworks

#: Maximum bytes of a file that may name the newest checkpoint.
_MAX_POINTER_BYTES = 4096
_STEP = re.compile(r"(?:global_?step|step|iter(?:ation)?|checkpoint|ckpt)[-_=]?(\d{1,15})(?!\d)", re.IGNORECASE)
#: A file that is still being written, such as ``path.with_suffix(".new")``, or a hidden file.
_UNFINISHED = re.compile(r".*(?:\.(?:new|tmp|temp|part|incomplete)|~)|\..*")
#: Names that mark the newest checkpoint, such as ``last.pt``.
_NEWEST = re.compile(r"(?:last|latest|newest|current)(?:[-_.]|$)", re.IGNORECASE)
#: Files next to checkpoints that are not checkpoints.
_OTHER_FILE = re.compile(r".*\.(?:txt|json|ya?ml|toml|csv|log|md|py|html|png|svg)", re.IGNORECASE)
_SHARD, _FOLDER_FILE, _PART = map(re.compile, (frameworks.SHARD_RE, frameworks.FOLDER_RE, frameworks.PIECE_RE))
#: Seconds without a change after which a checkpoint counts as complete.
_SETTLE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint. ``path`` is relative to ``root``, the ``checkpoint_dir()``; "." is that folder itself.

    ``parts`` are its files or folders, relative to ``root``; ``size`` is in bytes, ``modified`` in epoch seconds.
    ``step`` is None if it is neither in the name (``is_named``) nor in a report. ``metrics`` are means over ranks at
    the newest reported step that is not later; in a long job, over the steps that one point of the curve covers.
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
        """Its path on this machine."""
        return str(self.root / self.path)

    @property
    def is_alias(self) -> bool:
        """Whether its name contains no step but marks it as the newest one (``last.pt``)."""
        return not self.is_named and _NEWEST.match(self.name) is not None

    @property
    def load_code(self) -> str:
        """Python code that loads it in a single process."""
        location = Path(self.location)
        fields = {"path": self.location, "folder": str(location.parent), "tag": self.name}
        names = [entry.name for entry in location.iterdir()] if location.is_dir() else [*self.parts, self.name]
        codes = [code for pattern, code in frameworks.LOAD_CODE if any(re.fullmatch(pattern, name) for name in names)]
        return [*codes, "checkpoint = {path!r}"][0].format(**fields)


def read_inherited_curves(folder: JobFolder) -> MetricStore:
    """Return the curves of the jobs from whose checkpoints this job continues, as far back as they exist."""
    store = MetricStore()
    with contextlib.suppress(DistDLError):  # removed or unreadable
        if is_id(id_ := folder.read_spec().resumed_from) and id_ < folder.id:
            source = JobFolder(folder.path.with_name(id_))
            store = read_inherited_curves(source)
            for event in events.read_all(source.events)[0]:
                store.apply(event)
            store.apply({"type": "restart"})  # later reports replace the same and later steps
    return store


def find_all(folder: JobFolder, store: MetricStore) -> list[Checkpoint]:
    """Return the checkpoints of a job, newest first. ``store`` contains its curves, including inherited ones."""
    curves = {name: metric.get_band().rows for name, metric in store.metrics.items()}
    checkpoints = []
    for checkpoint in search(folder.checkpoints):
        latest: dict[str, Row] = {}
        for name, rows in curves.items():
            for row in rows:
                if row.step <= (checkpoint.step or 0) if checkpoint.is_named else row.time <= checkpoint.modified:
                    latest[name] = row
        step = checkpoint.step if checkpoint.is_named else max((row.step for row in latest.values()), default=None)
        metrics = {name: row.mean for name, row in latest.items() if row.mean is not None}
        checkpoints.append(replace(checkpoint, step=step, metrics=metrics))
    checkpoints.sort(key=lambda entry: (-1.0 if entry.step is None else entry.step, entry.modified), reverse=True)
    return checkpoints


def search(root: Path, folder: str = "") -> Iterator[Checkpoint]:
    """Yield the checkpoints in ``folder``, a path in ``root``, in any order and without metrics; follow no links."""
    try:
        with os.scandir(root / folder) as scanner:
            entries = list(scanner)
    except OSError:  # missing, or deleted in the meantime
        return
    prefix = f"{folder}/" if folder else ""
    files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
    is_folder = any(_SHARD.fullmatch(file.name) or _FOLDER_FILE.fullmatch(file.name) for file in files)
    if folder and files and (is_folder or parse_step(folder) is not None):
        members = [Path(parent, name) for parent, _, names in os.walk(root / folder) for name in names]
        yield _make_checkpoint(root, folder, (folder,), members)
        return
    if is_folder:  # only the files directly in ``checkpoint_dir()``
        yield _make_checkpoint(root, ".", [file.name for file in files], files)
        files = []
    groups: dict[str, list[os.DirEntry[str]]] = {}
    for file in files:
        if _UNFINISHED.fullmatch(file.name) or _OTHER_FILE.fullmatch(file.name):
            continue
        with contextlib.suppress(OSError):
            # A small file without a suffix names the newest checkpoint.
            if "." in file.name or file.stat(follow_symlinks=False).st_size > _MAX_POINTER_BYTES:
                match = _PART.fullmatch(file.name)
                groups.setdefault(match[1] if match else file.name, []).append(file)
    for name, parts in groups.items():
        yield _make_checkpoint(root, prefix + name, [prefix + part.name for part in parts], parts)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and not _UNFINISHED.fullmatch(entry.name):
            yield from search(root, prefix + entry.name)


def _make_checkpoint(root: Path, path: str, parts: Sequence[str], files: Iterable[os.PathLike[str]]) -> Checkpoint:
    stats = []
    for file in files:
        with contextlib.suppress(OSError):
            stats.append(os.lstat(file))
    size, modified = sum(stat.st_size for stat in stats), max((stat.st_mtime for stat in stats), default=0.0)
    step = parse_step(path)
    return Checkpoint(root, path, tuple(parts), size, modified, len(stats), step, is_named=step is not None)


def parse_step(path: str) -> float | None:
    """Return the step in the last part of a path that contains a step, or None."""
    for part in reversed(path.split("/")):
        if steps := _STEP.findall(part) or re.findall(r"^(\d{1,15})(?:\.|\Z)", part):
            return float(steps[-1])
    return None


def choose(checkpoints: Sequence[Checkpoint], step: float | None = None, path: str | None = None) -> Checkpoint:
    """Return the newest checkpoint, or the one with a step or path. Raises InvalidSpec, which lists the steps."""
    if not checkpoints:
        hint = "Save checkpoints in distdl_jupyter.checkpoint_dir()."
        raise InvalidSpec("The job has no checkpoint.", code="no-checkpoint", field="step", hint=hint)
    matches = [entry for entry in checkpoints if step is None or entry.step == step]
    matches = [entry for entry in matches if path is None or entry.path == path.rstrip("/")]
    if matches:
        return next((entry for entry in matches if not entry.is_alias), matches[0])
    steps = [count(value) for value in sorted({entry.step for entry in checkpoints if entry.step is not None})]
    hint = f"It has checkpoints of steps {listing(steps[-20:])}." if steps else ""
    field, label = ("path", repr(path)) if step is None else ("step", f"of step {count(step)}")
    raise InvalidSpec(f"The job has no checkpoint {label}.", code=f"checkpoint-{field}-unknown", field=field, hint=hint)


def copy(source: Checkpoint, target: Path, copy_file: Callable[[str, str], str]) -> None:
    """Copy a checkpoint to another ``checkpoint_dir()`` and mark it as the newest one there.

    Aliases (``last.pt``), links and small files that name the newest checkpoint (DeepSpeed's ``latest``) then refer to
    the copy. Files that do not belong to any checkpoint are copied too. Raises OSError.
    """
    root, origin, checkpoints = source.root, Path(source.path), list(search(source.root))
    names = {checkpoint.name for checkpoint in checkpoints}
    parts = {root / part for checkpoint in checkpoints for part in checkpoint.parts}
    copies = [(root / part, target / part) for part in source.parts]
    for checkpoint in checkpoints:
        # An alias is a single file or folder with the same parent and suffix.
        alias, is_single = Path(checkpoint.path), len(checkpoint.parts) == len(source.parts) == 1
        if checkpoint.is_alias and is_single and (alias.parent, alias.suffix) == (origin.parent, origin.suffix):
            copies.append((root / source.parts[0], target / checkpoint.parts[0]))
    for path in root.rglob("*"):  # does not follow links
        is_other = parts.isdisjoint((path, *path.parents)) and not _UNFINISHED.fullmatch(path.name)
        if is_other and (path.is_symlink() or not path.is_dir()):
            copies.append((path, target / path.relative_to(root)))
    for path, destination in dict.fromkeys(copies):
        destination.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_symlink():
            if path.readlink().name in names:
                destination.symlink_to(source.name)
        elif path.is_dir():
            shutil.copytree(path, destination, symlinks=True, copy_function=copy_file)
        elif path.stat().st_size <= _MAX_POINTER_BYTES and path.read_bytes().strip() in map(os.fsencode, names):
            destination.write_text(source.name, encoding="utf-8")
        else:
            copy_file(str(path), str(destination))


def is_unchanged(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint has the same size, modification time and number of files as when it was listed."""
    state = (checkpoint.path, checkpoint.size, checkpoint.modified, checkpoint.files)
    return any((other.path, other.size, other.modified, other.files) == state for other in search(checkpoint.root))


def find_superfluous(keep: KeepRule, checkpoints: Sequence[Checkpoint], now: float) -> list[Checkpoint]:
    """Return the checkpoints to delete: complete ones that are not among the newest and best steps of their group.

    ``checkpoints`` are sorted as by ``find_all``. Names in a group differ only in numbers, so ``best.pt`` next to
    ``step-400.pt`` is not deleted, nor is the target of a link. All files of one step are deleted together.
    """
    groups: dict[str, list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        if not checkpoint.is_alias and checkpoint.path != ".":
            groups.setdefault(re.sub(r"\d+", "", checkpoint.path), []).append(checkpoint)
    candidates: list[Checkpoint] = []
    for group in groups.values():
        rated = [checkpoint for checkpoint in group if keep.metric in checkpoint.metrics]
        rated.sort(key=lambda checkpoint: checkpoint.metrics[keep.metric], reverse=keep.is_maximized)
        retained: set[float | str] = set()
        for ordered, limit in ((group, keep.last), (rated, keep.best)):
            steps = dict.fromkeys(entry.path if entry.step is None else entry.step for entry in ordered)
            retained.update([*steps][:limit])
        settled = [entry for entry in group if entry.modified < now - _SETTLE_SECONDS]
        candidates += [entry for entry in settled if retained.isdisjoint((entry.step, entry.path))]
    if not candidates:
        return []
    root = Path(os.path.realpath(candidates[0].root))
    targets = [Path(os.path.realpath(path)) for path in root.rglob("*") if path.is_symlink()]
    linked = {part for target in targets for part in (target, *target.parents)}
    return [entry for entry in candidates if linked.isdisjoint(root / part for part in entry.parts)]


def remove(checkpoint: Checkpoint) -> None:
    """Delete a checkpoint. Links are deleted, but not their targets. Raises OSError."""
    for part in checkpoint.parts:
        path = checkpoint.root / part
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
