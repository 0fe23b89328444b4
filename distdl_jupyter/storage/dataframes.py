"""Spark DataFrames as data sources of a job: written once as Parquet before it starts, and deleted with the last job.

``data={"train": dataframe}``, or ``--data train=NAME`` on a magic's line, writes to ``$DISTDL_DATAFRAMES``, or, where
Spark runs on this machine, into the data directory; ``data={"train": (dataframe, "shared:/mnt/data")}`` writes there.
Each DataFrame gets a folder of its own, ``distdl-<32 hexadecimal digits>``, with Parquet files and ``_distdl.json``
(see ``worker.shard``). Spark counts the rows while it writes them, and the files must hold as many. Nothing proves that
a plan would give the same rows once more, so each ``submit`` writes anew; ``data=job.spec.data`` uses what an earlier
job has read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.core import atomic_write, data
from distdl_jupyter.core.errors import DataUnavailable, DiskRefused, InvalidSpec, JobNotFound
from distdl_jupyter.core.humanize import count, plural, size
from distdl_jupyter.core.store import JobStore, home
from distdl_jupyter.worker.shard import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from distdl_jupyter.core.data import DataSource
    from distdl_jupyter.core.spec import JobSpec

#: Where DataFrames are written by default: ``shared:/path`` or a path of this machine.
VARIABLE = "DISTDL_DATAFRAMES"
#: Bytes of a row group: what a rank holds in memory, compressed.
_ROW_GROUP = 16 << 20
_FOLDER = 'Name a folder that Spark, this machine and the nodes share: "shared:/mnt/data".'
_NAME = re.compile(r"distdl-[0-9a-f]{32}")
#: Files whose footers are read at the same time.
_AT_ONCE = 16


class Frame(NamedTuple):
    """A DataFrame to be written, and the source that it will be."""

    dataframe: Any
    source: DataSource


def is_dataframe(value: Any) -> bool:
    """Say whether it is a DataFrame of Spark, which is not imported for that."""
    of = type(value)
    return of.__name__ == "DataFrame" and of.__module__.startswith("pyspark.sql.")


def named(given: Any, names: Mapping[str, Any]) -> Any:
    """Return ``data=`` of a magic's line with the notebook's DataFrames in place of their names: ``train=table``."""
    found = {name: names.get(where) if isinstance(where, str) else None for name, where in data.pairs(given)}
    found = {name: value for name, value in found.items() if is_dataframe(value)}
    return {**dict(data.pairs(given)), **found} if found else given


def planned(given: Any) -> tuple[list[Frame], Any]:
    """Return the DataFrames of ``data=``, and ``data=`` with their sources in their place. Raises InvalidSpec."""
    given = {"data": given} if _frame("data", given) else given
    if not isinstance(given, Mapping):
        return [], given
    found = {str(name): frame for name, where in given.items() if (frame := _frame(str(name), where))}
    return list(found.values()), {**given, **{name: frame.source for name, frame in found.items()}}


def _frame(name: str, where: Any) -> Frame | None:
    """Return the DataFrame that is given alone or as (dataframe, place), None for anything else."""
    if is_dataframe(where):
        return Frame(where, _source(name, where, os.environ.get(VARIABLE, "")))
    if isinstance(where, tuple) and len(where) == 2 and is_dataframe(where[0]):
        return Frame(where[0], _source(name, where[0], str(where[1])))
    return None


def _source(name: str, dataframe: Any, parent: str) -> DataSource:
    """Return the source that a DataFrame becomes, in a folder that does not exist yet. Raises InvalidSpec."""
    if not parent and not _is_here(dataframe):
        raise InvalidSpec(
            f"{name} is a DataFrame that Spark writes on other machines, and no folder is named that they share with "
            "this one.", field="data",
            hint=f'Name one: data={{"{name}": (dataframe, "shared:/mnt/data")}}, or set {VARIABLE}=shared:/mnt/data.',
        )  # fmt: skip
    within = data.source(name, parent or str(home() / "dataframes"))
    if within.stored or within.shard:
        raise InvalidSpec(f"{name} is a DataFrame, which is written to a folder and not to {within.url}.", field="data",
                          hint=_FOLDER)  # fmt: skip
    base = Path(within.path).expanduser().absolute()
    if not parent:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not base.is_dir():
        raise InvalidSpec(f"{base}, where {name} is to be written, is no folder here.", field="data",
                          hint=_FOLDER)  # fmt: skip
    return dataclasses.replace(within, path=str(base / f"distdl-{os.urandom(16).hex()}"), rows=0)


def _is_here(dataframe: Any) -> bool:
    """Say whether all of Spark runs on this machine."""
    context = getattr(dataframe.sparkSession, "_sc", None)  # what Spark Connect has not
    return context is not None and str(context.master).startswith("local")


def _refuse_too_few(spec: JobSpec) -> None:
    """Raise InvalidSpec when a DataFrame has less rows than the job has ranks."""
    for source in spec.data:
        if source.rows is not None and source.rows < spec.process_count:
            raise InvalidSpec(
                f"{source.name} has {plural(source.rows, 'row')}, and the job {plural(spec.process_count, 'process')}.",
                field="data", hint="Each process needs a row: start fewer.",
            )  # fmt: skip


def written(spec: JobSpec, frames: Sequence[Frame]) -> JobSpec:
    """Write the DataFrames and return the spec with their rows; what was begun is deleted when that fails.

    Raises DataUnavailable, InvalidSpec.
    """
    begun: list[DataSource] = []
    try:
        for frame in frames:
            begun.append(frame.source)
            begun[-1] = dataclasses.replace(frame.source, rows=_write(frame))
        known = {source.name: source for source in begun}
        spec = dataclasses.replace(spec, data=tuple(known.get(source.name, source) for source in spec.data))
        _refuse_too_few(spec)
    except BaseException:
        import shutil  # brings every way to compress

        for source in begun:
            shutil.rmtree(source.path, ignore_errors=True)  # this process has chosen its name
        raise
    return spec


def _write(frame: Frame) -> int:
    """Write a DataFrame and return how many rows it has. Raises DataUnavailable."""
    from concurrent.futures import ThreadPoolExecutor

    from pyspark.sql import Observation
    from pyspark.sql import functions as of

    source = frame.source
    folder = Path(source.path)
    folder.mkdir(mode=0o777 if source.scheme == "shared" else 0o700)
    observation = Observation()
    dataframe = _with_lists(frame.dataframe).observe(observation, of.count(of.lit(1)).alias("rows"))
    try:
        dataframe.write.mode("append").option("parquet.block.size", _ROW_GROUP).parquet(folder.as_uri())
    except Exception as error:
        reason = str(getattr(error, "getMessage", lambda: None)() or error).strip().split("\n")[0][:300].rstrip(".")
        raise DataUnavailable(f"Spark cannot write {source.name} to {folder}: {reason}.",
                              hint="Correct the DataFrame, or name another folder.") from error  # fmt: skip
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        files = [one for one in pool.map(_groups, sorted(folder.glob("*.parquet"))) if one[1]]
    rows = sum(sum(groups) for _, groups in files)
    # Without a row Spark may leave the count out of its plan, and would be waited for in vain.
    expected = int(observation.get["rows"]) if rows else 0
    if not rows and not (folder / "_SUCCESS").exists():
        raise DataUnavailable(f"Spark wrote {source.name} to a folder {folder} that is not this machine's.",
                              hint=_FOLDER)  # fmt: skip
    if rows != expected:
        raise DataUnavailable(
            f"Spark wrote {plural(expected, 'row')} of {source.name}, and {folder} has {count(rows)}.",
            hint=_FOLDER,
        )  # fmt: skip
    atomic_write.keep(folder / MANIFEST, json.dumps({"rows": rows, "files": files}))
    (folder / MANIFEST).chmod(0o644)
    return rows


def _with_lists(dataframe: Any) -> Any:
    """Return a DataFrame whose vectors of Spark ML are lists of numbers, as other readers know them."""
    for field in dataframe.schema.fields:
        if type(field.dataType).__name__ == "VectorUDT":
            from pyspark.ml.functions import vector_to_array

            dataframe = dataframe.withColumn(field.name, vector_to_array(dataframe[field.name]))
    return dataframe


def _groups(path: Path) -> tuple[str, list[int]]:
    """Return the name of a Parquet file and the rows of each of its row groups."""
    import pyarrow.parquet as pq

    found = pq.read_metadata(path)
    return path.name, [found.row_group(at).num_rows for at in range(found.num_row_groups)]


def summary(source: DataSource) -> str:
    """Return what was written: ``train: 1,000 rows of a DataFrame in 4 files, 12 kB, in /mnt/data/distdl-...``."""
    files = list(Path(source.path).glob("*.parquet"))
    much = size(sum(file.stat().st_size for file in files))
    return (f"{source.name}: {plural(source.rows or 0, 'row')} of a DataFrame in {plural(len(files), 'file')}, {much}, "
            f"in {source.path}")  # fmt: skip


def release(store: JobStore, sources: Iterable[DataSource]) -> None:
    """Delete the DataFrames among these sources that no job reads any more. Raises DiskRefused.

    A folder goes only when its name and its manifest are of this module and it is this user's.
    """
    doomed = {source.path for source in sources if source.rows is not None}
    if not doomed:
        return
    for id_ in store.ids():
        with suppress(JobNotFound):
            doomed -= {source.path for source in store.folder(id_).spec().data}
    import shutil

    for path in map(Path, sorted(doomed)):
        if not _is_ours(path):
            continue
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            raise DiskRefused(f"The DataFrame in {path} could not be deleted.", hint="Delete that folder.")


def _is_ours(path: Path) -> bool:
    try:
        seen = path.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid()
    return ours and _NAME.fullmatch(path.name) is not None and (path / MANIFEST).is_file()
