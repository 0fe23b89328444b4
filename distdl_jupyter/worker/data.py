"""The job's folders for training code: ``data_path("train")``, ``shard("train", 32)`` and ``checkpoint_dir()``.

Nothing is copied here: the stager has created a data folder before any rank starts, and an environment variable names
it. The files in the checkpoint folder are restored for the next attempt and for a resumed job, and are returned as an
output of the job.

``shard`` numbers the N rows of all Parquet files in order of file names. Rank r of W reads the rows from r * N // W to
(r + 1) * N // W. A row group is read when its first row is needed, and only the latest one is stored in memory.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from distdl_jupyter.worker import channel

#: Prefix of the environment variable of a data source. The source's name in upper case follows.
VARIABLE_PREFIX = "DISTDL_DATA_"


def data_path(name: str = "data") -> Path:
    """Return the path of one of the job's data sources on this node, a folder or a file.

    Raises LookupError outside a job, or if the job has no data source with this name.
    """
    path = os.environ.get(VARIABLE_PREFIX + name.upper())
    if path:
        return Path(path)
    if "DISTDL_JOB_ID" not in os.environ:
        raise LookupError(
            f"data_path({name!r}) works only in a job. Run the code with %%distributed or submit(), and add the source "
            f'there: data={{"{name}": "blob://account/container/prefix"}}.'
        )
    names = sorted(key.removeprefix(VARIABLE_PREFIX).lower() for key in os.environ if key.startswith(VARIABLE_PREFIX))
    available = f"The job has {', '.join(names)}." if names else "The job has none."
    remedy = "Add sources with data= of submit(), or --data NAME=ADDRESS."
    raise LookupError(f"Unknown data source {name!r}. {available} {remedy}")


class Shard(Sequence[dict[str, Any]]):
    """The batches of one rank, each a dict of column names and numpy arrays whose first axis is the rows.

    A column of lists of equal length becomes a 2-D array; other lists, strings and bytes become arrays of objects.
    ``torch.utils.data.DataLoader(shard, batch_size=None, num_workers=1)`` reads ahead and returns tensors.
    """

    def __init__(
        self, name: str, batch_size: int, columns: Sequence[str] | None, seed: int | None, rank: int, size: int
    ) -> None:
        import pyarrow.parquet as pq

        groups = []
        for path in sorted(data_path(name).rglob("*.parquet")):
            metadata = pq.read_metadata(path)
            groups += [(path, group, metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups)]
        total = sum(rows for _, _, rows in groups)
        if not groups:
            raise ValueError(f"{name} has no Parquet files for shard(). Read other files from data_path({name!r}).")
        if total < size:
            raise ValueError(f"{name} has {total} rows, but each of the {size} ranks needs at least one.")
        # Not more batches than the smallest shard has rows, because an empty batch has no mean.
        self._batch_count: int = min(-(-total // (size * batch_size)), total // size)
        self._columns, self._seed = None if columns is None else list(columns), seed
        #: The rows of this rank, as (path, number of the row group, first and last row in it (exclusive)).
        self._chunks: list[tuple[Path, int, int, int]] = []
        start, stop, offset = rank * total // size, (rank + 1) * total // size, 0
        for path, group, rows in groups:
            first, last = max(start - offset, 0), min(stop - offset, rows)
            if first < last:
                self._chunks.append((path, group, first, last))
            offset += rows
        if seed is not None:
            random.Random(f"{seed} {rank}").shuffle(self._chunks)  # noqa: S311 - not a secret
        self._ends = list(itertools.accumulate(last - first for _, _, first, last in self._chunks))
        #: The number of the chunk that was read last, and its rows.
        self._loaded: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return self._batch_count

    def __getitem__(self, index: Any) -> Any:
        """Return one batch. The sizes of a rank's batches differ by at most one."""
        import pyarrow as pa

        number = range(self._batch_count)[operator.index(index)]
        first, last = (border * self._ends[-1] // self._batch_count for border in (number, number + 1))
        parts, chunk = [], bisect.bisect_right(self._ends, first)
        while first < last:
            begin, end = self._ends[chunk - 1] if chunk else 0, min(last, self._ends[chunk])
            parts.append(self._load(chunk).slice(first - begin, end - first))
            first, chunk = end, chunk + 1
        batch = pa.concat_tables(parts)
        return {name: _to_numpy(batch.column(name).combine_chunks()) for name in batch.column_names}

    def _load(self, chunk: int) -> Any:
        if self._loaded[0] != chunk:
            import pyarrow.parquet as pq

            path, group, first, last = self._chunks[chunk]
            with pq.ParquetFile(path) as file:
                table = file.read_row_group(group, columns=self._columns, use_threads=False).slice(first, last - first)
            if table.num_rows != last - first:
                raise ValueError(f"{path} has changed while it was being read.")
            if self._seed is not None:
                order = list(range(table.num_rows))
                random.Random(f"{self._seed} {path.name} {group}").shuffle(order)  # noqa: S311
                table = table.take(order)
            self._loaded = (chunk, table)
        return self._loaded[1]


def shard(
    name: str,
    batch_size: int,
    *,
    columns: Sequence[str] | None = None,
    seed: int | None = None,
    rank: int | None = None,
    size: int | None = None,
) -> Shard:
    """Return the batches of this rank from the Parquet files in ``data_path(name)``.

    Each row is in exactly one batch of one rank, and all ranks have the same number of batches, so that no rank waits
    in the last step. A batch has at most ``batch_size`` rows (or two for a size of 1, if ranks differ by one row). With
    a ``seed``, for example the number of the epoch, row groups and the rows in each are shuffled. ``rank`` and ``size``
    default to those of this process in the job. Every node needs all files, so the address must not end in ``?shard``.

    Raises LookupError like ``data_path``, ValueError if there are no Parquet files or fewer rows than ranks, and
    ModuleNotFoundError without pyarrow.
    """
    rank = int(os.environ.get("DISTDL_RANK", "0")) if rank is None else rank
    size = int(os.environ.get("DISTDL_WORLD_SIZE", "1")) if size is None else size
    if batch_size < 1:
        raise ValueError(f"batch_size must be an integer of at least 1, not {batch_size!r}.")
    if not 0 <= rank < size:
        raise ValueError(f"Unknown rank {rank}: there are {size} ranks.")
    try:
        return Shard(name, batch_size, columns, seed, rank, size)
    except ModuleNotFoundError as error:
        text = 'shard() reads Parquet with pyarrow, which is not installed on this node. Add pip_packages=["pyarrow"].'
        raise ModuleNotFoundError(text) from error


def _to_numpy(column: Any) -> Any:
    """Convert an Arrow array to numpy: lists of equal length become an axis, missing numbers become NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type):
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) == 1 and lengths[0] is not None:
            inner = _to_numpy(column.flatten())
            return inner.reshape(len(column), lengths[0], *inner.shape[1:])
    return column.to_numpy(zero_copy_only=False, writable=True)


def checkpoint_dir() -> Path:
    """Create and return the job's checkpoint folder. Outside a job, it is ``checkpoints`` in the working directory.

    All ranks on a node have the same folder. Nodes without a shared file system have separate folders; if these contain
    files with the same name, the file from the node of rank 0 is used. Let rank 0 write and all ranks read.

    A rank can be stopped while it writes, so write to another name and rename the file, which is atomic::

        path = distdl_jupyter.checkpoint_dir() / "last.pt"
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    Raises OSError if the folder cannot be created.
    """
    job = os.environ.get("DISTDL_JOB_DIR")
    folder = Path(job, "outputs", "checkpoints") if job else Path.cwd() / "checkpoints"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


#: Two signals within this many seconds count as one warning, because Slurm and the node's agent may each send one.
_SAME_WARNING_SECONDS = 3.0
#: Whether the handlers are installed, whether a warning was received since the last call, and when (monotonic seconds).
_is_listening = _is_warned = False
_warned_at = -_SAME_WARNING_SECONDS


def _install_handlers() -> None:
    """Install the signal handlers. They also call the handlers that training code has installed before."""

    def handle(number: int, frame: FrameType | None) -> None:
        global _is_warned, _warned_at
        moment = time.monotonic()
        _is_warned, _warned_at = _is_warned or moment - _warned_at > _SAME_WARNING_SECONDS, moment
        if callable(previous_handler := previous_handlers[number]):
            previous_handler(number, frame)

    # Slurm sends SIGTERM some time before SIGKILL. On other clusters, SIGTERM ends the rank as usual.
    numbers = (signal.SIGUSR1, signal.SIGTERM) if "SLURM_PROCID" in os.environ else (signal.SIGUSR1,)
    previous_handlers: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, handle)


def should_checkpoint() -> bool:
    """Return whether this rank should save a checkpoint now because the job will end soon; True once per warning.

    Slurm warns a job before its time limit (cluster option ``checkpoint_seconds``) and before it is preempted, if the
    site allows time for that. Call this after every step, in the main thread; it costs almost nothing::

        if step % 100 == 99 or distdl_jupyter.should_checkpoint():
            save(step)

    Ranks can receive the warning at different steps. If all ranks save together (FSDP, DeepSpeed), make them agree, for
    example with an all-reduce of the result every few steps. On other clusters, and outside a job, the result is always
    False unless the process receives SIGUSR1.
    """
    global _is_warned, _is_listening
    # In code that never calls this function, signals have their usual effect, and a library that checks for existing
    # handlers (such as Lightning) can install other ones.
    if not _is_listening and threading.current_thread() is threading.main_thread():
        _is_listening = True
        _install_handlers()
    is_warned, _is_warned = _is_warned, False
    if is_warned:
        text = "The code was asked to save a checkpoint because the job will stop soon."
        channel.notify("info", text, "should-checkpoint")
    return is_warned
