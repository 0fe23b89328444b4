"""What the launch form says beside its rows of data and its place for outputs, and the check that it makes of it.

What can be refused by its words alone is refused at once, as ``submit`` would; the rest is looked at meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry
from distdl_jupyter.core.data import blob_place, place
from distdl_jupyter.core.errors import DistDLError, InvalidSpec
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.form import datalook, datarows
from distdl_jupyter.form.datalook import Found, Look
from distdl_jupyter.form.schema import DataAnswer, DataNow
from distdl_jupyter.jobs import jobspec
from distdl_jupyter.preflight import Check, Finding

if TYPE_CHECKING:
    from distdl_jupyter.clusters.base import Cluster
    from distdl_jupyter.core.data import DataSource
    from distdl_jupyter.form.schema import DataRow


@dataclass(frozen=True, slots=True)
class Where:
    """Where the job would run: its cluster, how many nodes, and the folder that local paths begin in."""

    cluster: Cluster
    nodes: int
    directory: Path
    #: Seconds to wait for a look that begins now, whether to begin one at all, and whether whatever is known.
    timeout: float = 0.0
    look: bool = False
    fresh: bool = False

    @property
    def here(self) -> bool:
        """Whether its nodes are this machine."""
        return not self.cluster.far and self.cluster.stages


def cluster(name: str) -> Cluster | None:
    """Return the cluster of a name, None where it is not known or cannot be loaded."""
    try:
        found: Cluster = registry.get("clusters", cluster_configs.find(name).kind)
    except DistDLError:
        return None
    return found


def shown(rows: Sequence[DataRow], outputs: str, where: Where | None) -> DataNow:
    """Return what is known of all rows and of the place for outputs."""
    refused = jobspec.data_refusal(where.cluster) if where else None
    known = [_row(rows, number, where) for number in range(len(rows))] if where and not refused else [None] * len(rows)
    target = _outputs(outputs, where) if where else None
    datalook.wait((one for one in (*known, target) if isinstance(one, Look)), where.timeout if where else 0.0)
    sources = tuple(_answer(one.name, one.place, now, where) for one, now in zip(rows, known, strict=True))
    delivery = _answer("", outputs, target, where)
    return DataNow(
        mounts=where is not None and where.cluster.mounts,
        reason=str(refused) if refused and not all(datarows.is_blank(one) for one in rows) else "",
        looking=any(one.looking for one in (*sources, delivery)),
        sources=sources,
        outputs=delivery,
    )


def _row(rows: Sequence[DataRow], number: int, where: Where) -> Found | Look | None:
    if datarows.is_blank(rows[number]):
        return None
    try:
        given = datarows.source(rows[number])
        _refuse_second(rows, number)
        (source,) = jobspec.data_sources([given], where.directory, where.cluster)
    except InvalidSpec as error:
        return Found("error", error.message, error.hint, error.code)
    if not source.stored and not where.cluster.stages:
        return None  # whether its nodes see a path at all is for the cluster to say
    key = (place(source), source.shard, where.nodes, where.here)
    return datalook.at(key, _ask(source, where), look=where.look, fresh=where.fresh)


def _refuse_second(rows: Sequence[DataRow], number: int) -> None:
    name = datarows.name(rows[number])
    before = [datarows.name(one).upper() for one in rows[:number] if not datarows.is_blank(one)]
    if name.upper() in before:
        raise InvalidSpec(
            f"Another row also has the name {name}.",
            code="data-row-twice",
            field="data",
            hint="Use names that differ in more than upper and lower case.",
        )


def _ask(source: DataSource, where: Where) -> Callable[[], Found]:
    if source.stored:
        return lambda: datalook.stored(source, nodes=where.nodes, here=where.here)
    if source.scheme == "shared" and not where.here:
        return lambda: Found("info", "It is checked on every node when the job starts.")
    return lambda: datalook.folder(Path(source.path))


def _outputs(typed: str, where: Where) -> Found | Look | None:
    if not typed.strip():
        return None
    try:
        target = blob_place(typed.strip(), "outputs")
    except InvalidSpec as error:
        return Found("error", error.message, error.hint, error.code)
    key = ("outputs", target.account, target.container)
    return datalook.at(key, lambda: datalook.target(target), look=where.look, fresh=where.fresh)


def _answer(name: str, typed: str, known: Found | Look | None, where: Where | None) -> DataAnswer:
    found = known.found if isinstance(known, Look) else known
    level, text, remedy, code, sign_in = found or ("", "", "", "", False)
    if isinstance(known, Look) and level == "error" and where and not where.cluster.stages:
        level = "warning"  # its nodes read with an identity of their own
    looking = isinstance(known, Look) and known.looking
    return DataAnswer(name, typed, level, text, remedy, looking, sign_in, code)


def given_up(now: DataNow, seconds: float) -> DataNow:
    """Say of what is still being looked at that nobody does any more, after so many ``seconds``."""

    def without(one: DataAnswer) -> DataAnswer:
        if one.looking and not one.level:
            text = f"No response within {seconds:g} s. It is checked again when the job starts."
            one = replace(one, level="info", text=text)
        return replace(one, looking=False)

    return replace(now, looking=False, sources=tuple(map(without, now.sources)), outputs=without(now.outputs))


def checks(now: DataNow) -> list[Check]:
    """Return the check of the rows and the place for outputs, [] when there are none."""
    rows = [(f"{one.name.strip() or datarows.UNNAMED}: ", one) for one in now.sources]
    said = [(name, one) for name, one in (*rows, ("Outputs: ", now.outputs)) if one.name.strip() or one.place.strip()]
    if not said:
        return []
    reasons = [Finding("error", "data", now.reason)] if now.reason else []
    wrong = [
        Finding("warning" if one.level == "warning" else "error", one.code or "data", name + one.text, one.remedy)
        for name, one in said
        if one.level in ("warning", "error")
    ]
    known = [name + one.text for name, one in said if one.text]
    return [Check("Data", "; ".join(known) or plural(len(said), "place"), (*reasons, *wrong))]
