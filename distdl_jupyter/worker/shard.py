"""Rows of a table for each rank: ``shard("train", 32)`` returns this rank's batches of a folder of Parquet files.

* The N rows of all files, by file name, are numbered; rank r of W has those from r * N // W to (r + 1) * N // W, so
  each row belongs to one rank and the ranks' counts differ by at most one.
* All ranks have the same number of batches, and a rank's rows are spread evenly over them.
* A row group is read when its first row is wanted, and the last one is kept: memory holds one, not the table.
"""

from __future__ import annotations

import bisect
import itertools
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.data import data_path


class _Piece(NamedTuple):
    """Rows ``first`` to ``last`` (not included) of a row group."""

    file: str
    group: int
    first: int
    last: int


class Shard(Sequence[dict[str, Any]]):
    """The batches of one rank: each a dict of column names and numpy arrays whose first axis is the rows.

    A column of lists of one length is an array of two axes; other lists, texts and bytes are arrays of objects.
    ``torch.utils.data.DataLoader(shard, batch_size=None, num_workers=1)`` reads ahead and gives tensors.
    """

    def __init__(
        self, folder: Path, name: str, batch_size: int, *, columns: Sequence[str] | None, seed: int | None, rank: int,
        size: int,
    ) -> None:  # fmt: skip
        files = _row_groups(folder, name)
        #: How many rows the table has.
        self.total = sum(sum(groups) for _, groups in files)
        if self.total < size:
            raise ValueError(f"{name} has {self.total} rows, but each of the {size} ranks needs at least one.")
        #: The numbers of this rank's rows.
        self.rows = range(rank * self.total // size, (rank + 1) * self.total // size)
        # Not more than the smallest rank has rows: an empty batch has no mean.
        self._batches: int = min(-(-self.total // (size * batch_size)), self.total // size)
        self._name, self._size, self._folder, self._columns, self._seed = name, size, folder, columns, seed
        self._pieces = list(_pieces(files, self.rows))
        if seed is not None:
            random.Random(f"{seed} {rank}").shuffle(self._pieces)  # noqa: S311 - no secret
        self._ends = list(itertools.accumulate(piece.last - piece.first for piece in self._pieces))
        self._kept: tuple[_Piece | None, Any] = (None, None)
        self._read: dict[int, int] = {}

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, at: Any) -> Any:
        """Return one batch. All batches of a rank have the same number of rows, but for one more in some of them."""
        if isinstance(at, slice):
            return [self[one] for one in range(self._batches)[at]]
        number = range(self._batches)[at]
        first, last = (one * len(self.rows) // self._batches for one in (number, number + 1))
        batch = self._rows(first, last)
        self._count(number, last - first)
        return {name: _numpy(column.combine_chunks()) for name, column in zip(batch.column_names, batch.columns,
                                                                              strict=True)}  # fmt: skip

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.__getitem__, range(self._batches))

    def __getstate__(self) -> dict[str, Any]:
        """Let a process that loads data begin without the row group that is kept here."""
        return {**self.__dict__, "_kept": (None, None), "_read": {}}

    def _rows(self, first: int, last: int) -> Any:
        """Return the rows at these places of this rank's order as a table."""
        import pyarrow as pa

        parts = []
        at = bisect.bisect_right(self._ends, first)
        while first < last:
            begin = self._ends[at - 1] if at else 0
            end = min(last, self._ends[at])
            parts.append(self._load(self._pieces[at]).slice(first - begin, end - first))
            first, at = end, at + 1
        return pa.concat_tables(parts)

    def _load(self, piece: _Piece) -> Any:
        if self._kept[0] != piece:
            import pyarrow.parquet as pq

            with pq.ParquetFile(self._folder / piece.file) as file:
                columns = None if self._columns is None else list(self._columns)
                found = file.read_row_group(piece.group, columns=columns, use_threads=False)
            found = found.slice(piece.first, piece.last - piece.first)
            if found.num_rows != piece.last - piece.first:
                raise ValueError(f"{piece.file} of {self._name} has changed while it was read.")
            if self._seed is not None:
                order = list(range(found.num_rows))
                random.Random(f"{self._seed} {piece.file} {piece.group}").shuffle(order)  # noqa: S311
                found = found.take(order)
            self._kept = (piece, found)
        return self._kept[1]

    def _count(self, number: int, rows: int) -> None:
        """Report to the job when this rank has read each of its batches."""
        if len(self._read) == self._batches:
            return
        self._read[number] = rows
        out = channel.current()
        if len(self._read) == self._batches and out is not None:
            out.send("shard", source=self._name, first=self.rows.start, rows=sum(self._read.values()), total=self.total,
                     steps=self._batches, size=self._size)  # fmt: skip


def shard(
    name: str, batch_size: int, *, columns: Sequence[str] | None = None, seed: int | None = None,
    rank: int | None = None, size: int | None = None,
) -> Shard:  # fmt: skip
    """Return the batches of this rank from the Parquet files in ``data_path(name)``.

    Each row is in exactly one batch of one rank, and all ranks have the same number of batches, so that no rank waits
    in the last step. A batch has at most ``batch_size`` rows (or two for a size of 1, if ranks differ by one row). With
    a ``seed``, for example the number of the epoch, row groups and the rows in each are shuffled. ``rank`` and ``size``
    default to those of this process in the job. Every node needs all files, so the address must not end in ``?shard``.

    Raises LookupError like ``data_path``, ValueError if there are no Parquet files or fewer rows than ranks, and
    ModuleNotFoundError without pyarrow.
    """
    folder = data_path(name)
    if batch_size < 1:
        raise ValueError(f"batch_size must be an integer of at least 1, not {batch_size!r}.")
    try:
        import pyarrow.parquet  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'shard() reads Parquet with pyarrow, which is not installed on this node. Add pip_packages=["pyarrow"].'
        ) from error
    number = int(os.environ.get("DISTDL_RANK", "0")) if rank is None else rank
    of = int(os.environ.get("DISTDL_WORLD_SIZE", "1")) if size is None else size
    if not 0 <= number < of:
        raise ValueError(f"Unknown rank {number}: there are {of} ranks.")
    return Shard(folder, name, batch_size, columns=columns, seed=seed, rank=number, size=of)


def _row_groups(folder: Path, name: str) -> list[tuple[str, list[int]]]:
    """Return the Parquet files of a folder by name, with the number of rows in each row group."""
    import pyarrow.parquet as pq

    found = []
    for path in sorted(folder.rglob("*.parquet")):
        metadata = pq.read_metadata(path)
        groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        found.append((str(path.relative_to(folder)), groups))
    if not found:
        raise ValueError(f"{name} has no Parquet files for shard(). Read other files from data_path({name!r}).")
    return found


def _pieces(files: Sequence[tuple[str, Sequence[int]]], rows: range) -> Iterator[_Piece]:
    """Yield the parts of row groups that hold these rows."""
    begin = 0
    for file, groups in files:
        for group, count in enumerate(groups):
            first, last = max(rows.start - begin, 0), min(rows.stop - begin, count)
            if first < last:
                yield _Piece(file, group, first, last)
            begin += count


def _numpy(column: Any) -> Any:
    """Return an Arrow array as one of numpy: lists of one length become an axis, missing numbers become NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type):
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) == 1 and lengths[0] is not None:
            inner = _numpy(column.flatten())
            return inner.reshape(len(column), lengths[0], *inner.shape[1:])
    return column.to_numpy(zero_copy_only=False, writable=True)
