"""What a rank of a check records of its first training steps: samples, losses, gradients, weights.

A job in check mode has the variable ``DISTDL_CHECK``, ``{"steps": 3, "replay": folder or ""}``. Each rank writes

* ``check/rank-<n>.json`` in the job's folder, from which ``core.correctness`` compares: of each tensor its norm and a
  short linear sketch, of each sample a hash;
* ``check/rank-<n>.pkl``: its batches, and on rank 0 the weights before each step, so that one process can do the same
  steps with the batches of all ranks. Only ranks open it.

The sketch of x has for each of ``BUCKETS`` buckets the sum of the elements that fall in it, with random signs, the same
in every process (Charikar, Chen and Farach-Colton, 2002, https://doi.org/10.1016/S0304-3975(03)00400-6): the squares of
a sketch add up to those of the tensor in the mean, and the sketch of a difference or mean is that of the sketches. So
tensors of any size are compared by a few numbers.

After the steps ``Finished`` ends the rank's code as ``sys.exit()`` does. The hooks of a framework fill the record.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.worker import owned

if TYPE_CHECKING:
    from distdl_jupyter.worker.sources import Sources

#: Variable of a job in check mode.
VARIABLE = "DISTDL_CHECK"
VERSION = 1
#: Numbers of a sketch; smaller tensors are kept as they are. Signs are drawn for so many elements at once.
BUCKETS, CHUNK = 32, 1 << 20
#: Bytes of batches, and of weights, that a rank keeps for the one process at most.
MOST_BYTES = 2_000_000_000
#: Samples of a step whose hashes are kept, and containers inside each other in which tensors are looked for.
MOST_SAMPLES, _DEEPEST = 4096, 6
#: A file or cell of the user's code, and the line in it.
Line = tuple[str, int]
NOWHERE: Line = ("", 0)


class Finished(SystemExit):
    """Raised in the user's code when all steps are recorded; the rank ends as after ``sys.exit()``."""

    def __init__(self) -> None:
        super().__init__(0)


class Step:
    """One training step of one rank: plain data, see ``core.correctness``."""

    def __init__(self) -> None:
        #: By loader: the batch that was fetched last.
        self.batches: dict[int, dict[str, Any]] = {}
        #: Hashes of the samples that went into the model.
        self.inputs: list[str] = []
        self.losses: list[float] = []
        self.random = False
        #: Why the last backward pass averaged no gradients: "no_sync" or "forward", with the line; "" where it did.
        self.unsynced, self.unsynced_line = "", NOWHERE
        #: Whether an optimizer stepped inside ``no_sync()``.
        self.local = False
        self.optimizers: dict[int, dict[str, Any]] = {}

    def to_json(self) -> dict[str, Any]:
        """Return it as data."""
        batches = [{"loader": loader, **one} for loader, one in sorted(self.batches.items())]
        return {"batches": batches, "inputs": self.inputs, "losses": self.losses, "random": self.random,
                "unsynced": self.unsynced, "unsynced_line": self.unsynced_line, "local": self.local,
                "optimizers": [{"index": index, **one} for index, one in sorted(self.optimizers.items())]}  # fmt: skip


class Recording:
    """The record of this rank. ``steps`` are those that have ended; ``step`` is the one that runs."""

    def __init__(self, folder: Path, rank: int, size: int, asked: Mapping[str, Any], sources: Sources) -> None:
        from distdl_jupyter.worker.frames import Describer

        self.rank, self.size = rank, size
        self._describer = Describer(sources, folder / "code")
        self.wanted = int(asked.get("steps", 3))
        self._folder = folder / "check"
        self.replay = Replay(Path(asked["replay"]) / "check", self.wanted) if asked.get("replay") else None
        self.step = Step()
        self.steps: list[dict[str, Any]] = []
        #: What is known of the whole training: names and shapes of weights, layers, samplers, why something is not.
        self.about: dict[str, Any] = {"names": {}, "shapes": {}, "layers": [], "loaders": {},
                                      "sharded": "", "lines": {}, "made": {}}  # fmt: skip
        self._batches: dict[tuple[int, int, int], Any] = {}
        self._weights: list[dict[int, Any]] = []
        self._bytes = 0
        self._written = False
        #: Called before the record is written.
        self.before_write: list[Callable[[], None]] = []

    def line(self) -> Line:
        """Return where the user's code is now: the innermost frame of a cell or of the user's files."""
        return self._describer.line()

    def keep_batch(self, place: tuple[int, int, int], batch: Any, size: int) -> None:
        """Keep a batch for the one process: the number of its loader, of the pass over it, and of the batch."""
        if self.size > 1 and self._bytes + size <= MOST_BYTES:
            self._bytes += size
            self._batches[place] = batch

    def keep_weights(self, index: int, weights: Any, size: int) -> None:
        """Keep the weights before a step, on rank 0."""
        if self.size > 1 and self.rank == 0 and self._bytes + size <= MOST_BYTES:
            self._bytes += size
            while len(self._weights) <= len(self.steps):
                self._weights.append({})
            self._weights[len(self.steps)][index] = weights

    def end_step(self) -> None:
        """Close the step that runs, and raise Finished after the last one."""
        self.steps.append(self.step.to_json())
        self.step = Step()
        if len(self.steps) >= self.wanted:
            self.finish()

    @property
    def is_over(self) -> bool:
        """Whether all steps were recorded."""
        return len(self.steps) >= self.wanted

    def finish(self) -> None:
        """Write the record and end the user's code."""
        self.write()
        raise Finished

    def write(self) -> None:
        """Write the files, once; also those of a training that has ended by itself."""
        if self._written:
            return
        self._written = True
        for call in self.before_write:
            call()
        if any("after" in one for one in self.step.optimizers.values()):  # the last step of a training
            self.steps.append(self.step.to_json())
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if self.size > 1:
            with open(self._folder / f"rank-{self.rank}.pkl", "wb", opener=owned.private) as file:
                pickle.dump({"batches": self._batches, "weights": self._weights}, file, pickle.HIGHEST_PROTOCOL)
        data = {"v": VERSION, "rank": self.rank, "size": self.size, "steps": self.steps, **self.about}
        hidden = self._folder / f".rank-{self.rank}"
        with open(hidden, "wb", opener=owned.private) as file:
            file.write(json.dumps(data).encode())
        hidden.replace(self._folder / f"rank-{self.rank}.json")


class Replay:
    """The batches and weights of all ranks of an earlier job, for one process. Raises PermissionError for others'."""

    def __init__(self, folder: Path, steps: int) -> None:
        kept = []
        for rank in range(sum(1 for _ in folder.glob("rank-*.pkl"))):
            with owned.open_own(folder / f"rank-{rank}.pkl") as file:
                kept.append(pickle.load(file))
        self.weights: list[dict[int, Any]] = kept[0]["weights"] if kept else []
        self._batches = [one["batches"] for one in kept]
        self._steps = steps
        #: Why a batch could not be put together, "" where all could.
        self.problem = ""

    def parts(self, place: tuple[int, int, int]) -> list[Any]:
        """Return the batch of each rank at a place, nothing where not all have one."""
        found = [one[place] for one in self._batches if place in one]
        return found if len(found) == len(self._batches) else []

    def ended(self, place: tuple[int, int, int]) -> bool:
        """Say whether the ranks' pass over a loader was over there: a later pass began."""
        loader, passed, _ = place
        return any(key[0] == loader and key[1] > passed for key in (self._batches[0] if self._batches else ()))


def digest(data: bytes) -> str:
    """Return a hash of some bytes."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def leaves(batch: Any, kind: Any, depth: int = _DEEPEST) -> list[Any]:
    """Return the tensors (of a class, or several) in a batch, in order."""
    if isinstance(batch, kind):
        return [batch]
    if depth == 0:
        return []
    if isinstance(batch, Mapping):
        return [leaf for one in batch.values() for leaf in leaves(one, kind, depth - 1)]
    if isinstance(batch, list | tuple):
        return [leaf for one in batch for leaf in leaves(one, kind, depth - 1)]
    return []


def joined(parts: list[Any], kind: Any, concatenate: Any) -> Any:
    """Return one batch of those of several ranks: tensors and lists behind each other, all else as on rank 0.

    Raises ValueError (or what ``concatenate`` raises) where their shapes differ.
    """
    first = parts[0]
    if isinstance(first, kind):
        return concatenate(parts) if len(first.shape) else first
    if isinstance(first, Mapping):
        return type(first)({key: joined([one[key] for one in parts], kind, concatenate) for key in first})  # type: ignore[call-arg]
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(joined(list(ones), kind, concatenate) for ones in zip(*parts, strict=True)))
    if isinstance(first, list | tuple):
        if leaves(first, kind):
            return type(first)(joined(list(ones), kind, concatenate) for ones in zip(*parts, strict=True))
        return type(first)(one for part in parts for one in part)
    return first


_recording: Recording | None = None


def start(folder: Path, rank: int, size: int, sources: Sources) -> None:
    """Begin to record where the job is one of a check."""
    global _recording
    if text := os.environ.get(VARIABLE):
        _recording = Recording(folder, rank, size, json.loads(text), sources)


def current() -> Recording | None:
    """Return the record of this rank, None where the job is no check."""
    return _recording


def close() -> None:
    """Write what was recorded up to the code's end."""
    if _recording is not None:
        _recording.write()
