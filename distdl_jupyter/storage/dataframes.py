"""Spark DataFrames as data sources of a job: written once as Parquet before it starts, and deleted with the last job.

``data={"train": dataframe}``, or ``--data train=NAME`` on a magic's line, writes to ``$DISTDL_DATAFRAMES``, or, where
Spark runs on this machine, into the data directory; ``data={"train": (dataframe, "shared:/mnt/data")}`` writes there,
also to ``blob://``, ``s3://`` and ``gs://``. Each DataFrame gets a folder of its own, ``distdl-<32 hexadecimal
digits>``, with Parquet files and ``_distdl.json`` (see ``worker.shard``). Executors write the files themselves, with
pyarrow and, to stores, obstore: Blob with a signature that only creates, others with what the executor has. A file's
name is new at each attempt of a task, and only those of attempts that Spark has counted are listed, so that no row is
there twice. Nothing proves that a plan would give the same rows once more, so each ``submit`` writes anew;
``data=job.spec.data`` uses what an earlier job has read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distdl_jupyter.core import atomic_write, data
from distdl_jupyter.core.errors import DataUnavailable, DiskRefused, DistDLError, InvalidSpec, JobNotFound
from distdl_jupyter.core.humanize import plural, size
from distdl_jupyter.core.store import JobStore, home
from distdl_jupyter.worker.shard import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from distdl_jupyter.core.data import DataSource
    from distdl_jupyter.core.spec import JobSpec

#: Where DataFrames are written by default: ``shared:/path``, a path of this machine, or a place in a store.
VARIABLE = "DISTDL_DATAFRAMES"
#: Bytes in memory of a row group, what a rank holds, and of a file, what an executor holds.
_ROW_GROUP, _FILE = 16 << 20, 64 << 20
_FOLDER = (
    'Use a folder that Spark, this machine and the nodes share, such as "shared:/mnt/data", or an address in a store.'
)
_NAME = re.compile(r"distdl-[0-9a-f]{32}")
#: What a task says of each file.
_SCHEMA = "name string, groups array<bigint>, bytes bigint"
#: The exceptions in a traceback of Python, of which the last one says why.
_RAISED = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Failure)): (.+)$", re.MULTILINE)


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
            f"Spark writes the DataFrame {name} on other machines, but no folder is set that they share with "
            "this machine.",
            code="dataframe-folder-missing",
            field="data",
            hint=f'Set one: data={{"{name}": (dataframe, "shared:/mnt/data")}}, or set {VARIABLE}=shared:/mnt/data.',
        )
    within = data.source(name, parent or str(home() / "dataframes"))
    if within.scheme == "https" or within.shard:
        raise InvalidSpec(
            f"The DataFrame {name} cannot be written to {within.url}.",
            code="dataframe-target-unsupported",
            field="data",
            hint=_FOLDER,
        )
    folder = f"distdl-{os.urandom(16).hex()}"
    if within.stored:
        return dataclasses.replace(within, prefix=f"{within.prefix}/{folder}".lstrip("/"), rows=0)
    base = Path(within.path).expanduser().absolute()
    if not parent:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not base.is_dir():
        raise InvalidSpec(
            f"The folder {base} for the DataFrame {name} does not exist on this machine.",
            code="dataframe-folder-not-here",
            field="data",
            hint=_FOLDER,
        )
    return dataclasses.replace(within, path=str(base / folder), rows=0)


def _is_here(dataframe: Any) -> bool:
    """Say whether all of Spark runs on this machine."""
    context = getattr(dataframe.sparkSession, "_sc", None)  # what Spark Connect has not
    return context is not None and str(context.master).startswith("local")


def _refuse_too_few(spec: JobSpec) -> None:
    """Raise InvalidSpec when a DataFrame has less rows than the job has ranks."""
    for source in spec.data:
        if source.rows is not None and source.rows < spec.process_count:
            raise InvalidSpec(
                f"{source.name} has {plural(source.rows, 'row')}, but the job has "
                f"{plural(spec.process_count, 'process')}.",
                code="dataframe-too-few-rows",
                field="data",
                hint="Use fewer processes, because each needs at least one row.",
            )


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
        for source in begun:
            with suppress(DistDLError):
                _delete(source, ours=True)  # this process has chosen its name
        raise
    return spec


def _write(frame: Frame) -> int:
    """Write a DataFrame and return how many rows it has. Raises DataUnavailable, NotSignedIn."""
    source = frame.source
    put = _putting(source)
    files = [file for file in _written_files(frame, _writer(put)) if file.groups]
    if not source.stored:
        here = {path.name: path.stat().st_size for path in Path(source.path).glob("*.parquet")}
        if any(here.get(file.name) != file.bytes for file in files):
            raise DataUnavailable(
                f"Spark wrote {source.name} to the folder {source.path} of another machine.",
                code="dataframe-written-elsewhere",
                hint=_FOLDER,
            )
    rows = sum(sum(file.groups) for file in files)
    manifest = json.dumps({"rows": rows, "files": [(file.name, list(file.groups)) for file in files]})
    if source.stored:
        put(MANIFEST, manifest.encode())
    else:
        atomic_write.keep(Path(source.path) / MANIFEST, manifest)
        (Path(source.path) / MANIFEST).chmod(0o644)
    return rows


def _written_files(frame: Frame, write: Any) -> list[Any]:
    """Let Spark write a DataFrame and return a row for each file. Raises DataUnavailable."""
    from distdl_jupyter.node.staging import failure
    from distdl_jupyter.stager import stores

    own = sys.modules[__name__]
    try:
        with _travelling(own, stores, failure):
            return list(_with_lists(frame.dataframe).mapInArrow(write, _SCHEMA).collect())
    except Exception as error:
        text = str(getattr(error, "getMessage", lambda: None)() or error).strip()
        raised = _RAISED.findall(text.partition("Traceback (most recent call last)")[2])
        reason = (raised[-1][1] if raised else text.split("\n")[0])[:300].rstrip(".")
        hint = "Correct the DataFrame, or use another folder."
        if raised and raised[-1][0] == "ModuleNotFoundError":
            hint = "Executors write with pyarrow, and to stores with obstore. Install both on the executors."
        raise DataUnavailable(
            f"Spark cannot write {frame.source.name} to {data.place(frame.source)}: {reason}.",
            code="dataframe-not-written",
            hint=hint,
        ) from error


@contextlib.contextmanager
def _travelling(*modules: Any) -> Iterator[None]:
    """Let what modules define travel to executors, which need not have this package."""
    from pyspark import cloudpickle

    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _putting(source: DataSource) -> Callable[[str, bytes], None]:
    """Return what puts a file into a DataFrame's folder, here and on executors. Raises DataUnavailable, NotSignedIn."""
    if not source.stored:
        folder = source.path
        Path(folder).mkdir(mode=0o777 if source.scheme == "shared" else 0o700)

        def keep(name: str, content: bytes) -> None:
            (Path(folder) / name).write_bytes(content)

        return keep
    from distdl_jupyter.storage import access, manifest

    kind, where, prefix, ca = source.scheme, manifest.address(source), source.prefix, access.trusted()
    settings, sas = manifest.settings(source), ""
    if source.scheme == "blob":
        account = access.account(source.account)
        with contextlib.closing(account.client):
            where, sas = f"{account.endpoint}/{source.container}", access.creating(account, source)
    return _storing(source.name, kind, where, prefix, ca, settings, sas)


def _storing(
    source: str, kind: str, where: str, prefix: str, ca: str, settings: dict[str, str], sas: str
) -> Callable[[str, bytes], None]:
    from distdl_jupyter.stager import stores

    access, errors, answer = stores.access, stores.errors, stores.answer  # they travel: executors need not have them

    def put(name: str, content: bytes) -> None:
        import obstore

        opened = access(source, kind, where, ca=ca, settings=settings, ask=lambda _: {"sas": sas}, retries=4)
        try:
            opened.use(lambda store: obstore.put(store, f"{prefix}/{name}", content, use_multipart=False))
        except errors() as error:  # its text could hold what the store answered
            said = answer(error)
            raise RuntimeError(f"{where} responded with {said.status or ''} {said.code}".replace("  ", " ")) from None

    return put


def _writer(put: Callable[[str, bytes], None]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what an executor does with the rows of a partition: it puts files and yields a row for each."""
    largest, group = _FILE, _ROW_GROUP

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import io

        import pyarrow as pa
        import pyarrow.parquet as pq

        def file(held: list[Any]) -> Any:
            table = pa.Table.from_batches(held)
            packed = io.BytesIO()
            rows = max(1, table.num_rows * group // max(table.nbytes, 1))
            pq.write_table(table, packed, row_group_size=rows)
            content, name = packed.getvalue(), f"part-{os.urandom(16).hex()}.parquet"
            put(name, content)
            counts = [min(rows, table.num_rows - first) for first in range(0, table.num_rows, rows)]
            return pa.RecordBatch.from_pydict({"name": [name], "groups": [counts], "bytes": [len(content)]})

        held: list[Any] = []
        for batch in batches:
            if batch.num_rows:
                held.append(batch)
            if sum(one.nbytes for one in held) >= largest:
                yield file(held)
                held = []
        if held:
            yield file(held)

    return write


def _with_lists(dataframe: Any) -> Any:
    """Return a DataFrame whose vectors of Spark ML are lists of numbers, as other readers know them."""
    for field in dataframe.schema.fields:
        if type(field.dataType).__name__ == "VectorUDT":
            from pyspark.ml.functions import vector_to_array

            dataframe = dataframe.withColumn(field.name, vector_to_array(dataframe[field.name]))
    return dataframe


def summary(source: DataSource) -> str:
    """Return what was written: ``train: 1,000 rows of a DataFrame in 4 files, 12 kB, in /mnt/data/distdl-...``."""
    if source.stored:
        return f"{source.name}: {plural(source.rows or 0, 'row')} of a DataFrame in {data.place(source)}"
    files = list(Path(source.path).glob("*.parquet"))
    much = size(sum(file.stat().st_size for file in files))
    return (f"{source.name}: {plural(source.rows or 0, 'row')} of a DataFrame in {plural(len(files), 'file')}, {much}, "
            f"in {source.path}")  # fmt: skip


def release(store: JobStore, sources: Iterable[DataSource]) -> None:
    """Delete the DataFrames among these sources that no job reads any more. Raises DiskRefused.

    A folder goes only when its name and its manifest are of this module and it is this user's.
    """
    doomed = {data.place(source): source for source in sources if source.rows is not None}
    if not doomed:
        return
    for id_ in store.ids():
        with suppress(JobNotFound):
            for source in store.folder(id_).spec().data:
                doomed.pop(data.place(source), None)
    for where, source in sorted(doomed.items()):
        try:
            _delete(source, ours=False)
        except DistDLError as error:
            raise DiskRefused(f"Cannot delete the DataFrame in {where}: {error}", code="dataframe-not-deleted",
                              hint="Delete that folder.") from error  # fmt: skip


def _delete(source: DataSource, *, ours: bool) -> None:
    """Delete the folder of a DataFrame; without ``ours`` only when it is proven to be one. Raises DistDLError."""
    if not source.stored:
        path = Path(source.path)
        if ours or _is_ours(path):
            import shutil  # brings every way to compress

            shutil.rmtree(path, ignore_errors=True)
            if path.exists():
                raise DiskRefused(
                    "Some of its files could not be removed.",
                    code="dataframe-not-removed",
                    hint="Check the permissions of the folder.",
                )
        return
    from distdl_jupyter.storage import manifest

    if _NAME.fullmatch(source.prefix.rpartition("/")[2]):
        manifest.delete(source, needs="" if ours else MANIFEST)


def _is_ours(path: Path) -> bool:
    try:
        seen = path.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid()
    return ours and _NAME.fullmatch(path.name) is not None and (path / MANIFEST).is_file()
