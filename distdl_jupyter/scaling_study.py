"""A scaling study, read again from the folders of its runs: nothing of it is kept anywhere else.

Each run is a job whose spec names the study and what was asked for (``core.spec.Group``); what it measured stands in
its ``steps.jsonl``. So any process may open a study, while it goes on and after the process that drives it has ended.
"""

from __future__ import annotations

import functools
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter import job_list, studies
from distdl_jupyter.core import scaling, step_times
from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.core.state import State
from distdl_jupyter.core.step_times import StepTimes
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.views.scaling import ScalingShown
from distdl_jupyter.views.scaling_panel import SIZE, Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.step_times import Straggler
    from distdl_jupyter.ended_cache import Listed
    from distdl_jupyter.views.job_table import JobRow

KIND = "scale"


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One job of a study; ``run`` is None before it has made enough steps."""

    row: JobRow
    run: scaling.Run | None
    straggler: Straggler | None

    @property
    def processes(self) -> int:
        """How many processes it has."""
        return self.row.node_count * self.row.process_count_per_node

    @property
    def key(self) -> tuple[str, int, int]:
        """Return backend, processes and nodes."""
        return self.row.backend, self.processes, self.row.node_count


def find(id_: str = "", *, over: bool = False) -> ScalingShown:
    """Return the study with an id, or its last part; without one the newest. Raises JobNotFound.

    ``over`` says that no further run will come, which else shows some seconds after the last one.
    """
    listed = [one for one in job_list.here().all() if one.row.group and one.row.group.kind == KIND]
    ids = list(dict.fromkeys(one.row.group.id for one in listed if one.row.group))
    found = [one for one in ids if not id_ or one == id_ or short_id(one) == id_]
    if not found:
        raise JobNotFound(f"There is no scaling study {id_}." if id_ else "There are no scaling studies yet.",
                          hint="scale(train, processes=[1, 2, 4]) makes one.")  # fmt: skip
    return _read([one for one in reversed(listed) if one.row.group and one.row.group.id == found[0]], over=over)


def _read(listed: list[Listed], *, over: bool) -> ScalingShown:
    """Return the study of some jobs, the oldest first."""
    store = JobStore()
    runs = [_run(store.folder(one.row.id), one) for one in listed]
    spec = store.folder(listed[0].row.id).spec()
    assert spec.group is not None
    found = ScalingShown(spec.group.name, _points(runs))
    found.facts = _facts(spec, runs, listed, over=over)
    return found


def _run(folder: JobFolder, one: Listed) -> StudyRun:
    run, straggler = _measured(folder) if one.active else _kept(str(folder.path))
    return StudyRun(one.row, run, straggler)


@functools.lru_cache(maxsize=512)
def _kept(path: str) -> tuple[scaling.Run | None, Straggler | None]:
    """Return what a job measured that has ended, and changes no more."""
    return _measured(JobFolder(Path(path)))


def _measured(folder: JobFolder) -> tuple[scaling.Run | None, Straggler | None]:
    times = step_times.read(folder.steps)
    run = scaling.measured(times) if times.rows else None
    if run is None:
        return None, None
    warm = [row for row in times.rows if row.attempt == times.rows[-1].attempt and row.step >= scaling.WARM_UP]
    return run, StepTimes(warm, {}, times.sending).straggler


def _points(runs: Sequence[StudyRun]) -> list[scaling.Point]:
    """Return a point for each backend and number of processes of which something is known, in the order of the runs."""
    found: dict[tuple[str, int, int], list[scaling.Run]] = {}
    for one in sorted(runs, key=lambda one: not State(one.row.state).ended):
        # A run that goes on counts where there is no other.
        if one.run is not None and (State(one.row.state).ended or not found.get(one.key)):
            found.setdefault(one.key, []).append(one.run)
    return [scaling.point(*key, group) for key, group in found.items()]


def _facts(spec: JobSpec, runs: Sequence[StudyRun], listed: Sequence[Listed], *, over: bool) -> Facts:
    group = spec.group
    assert group is not None
    now = float("inf") if over else time.time()
    rows = [one.row for one in runs]
    done = _done(runs)
    state, why = studies.scaling_state(rows[-1], now, complete=done == group.size)
    last = rows[-1].ended or time.time()
    by_point: dict[tuple[str, int], list[Straggler | None]] = {}
    for one in runs:
        if one.run is not None:
            by_point.setdefault((one.row.backend, one.processes), []).append(one.straggler)
    plan: dict[str, Any] = group.plan
    return Facts(
        id=group.id, state=state, problem=why, target=spec.compute_target,
        hosts=tuple(dict.fromkeys(host for one in listed for host in one.hosts)),
        done=done, size=group.size, runs=len(runs), seconds=last - rows[0].created,
        processes=tuple(plan.get("processes", ())), backends=tuple(plan.get("backends", ())),
        stragglers={key: same for key, found in by_point.items() if (same := _same(found)) is not None},
        epoch_samples=plan.get("epoch_samples"), learning_rate=plan.get("learning_rate"),
        scales_rate=bool(plan.get("scales_rate")), vm_size=spec.vm_size or "",
        price_per_hour=spec.price_per_hour, currency=spec.currency, price_source=spec.price_source,
        rehearsal=_rehearsal(spec, tuple(plan.get("backends", ()))),
    )  # fmt: skip


def _rehearsal(spec: JobSpec, backends: Sequence[str]) -> str:
    """Return code that measures the same on two emulated nodes, "" where it is not known, or runs elsewhere."""
    group, command = spec.group, spec.source.command
    if group is None or spec.cluster != "local" or spec.cluster_options.get("rehearse"):
        return ""
    counts = sorted({one for one in group.plan.get("processes", ()) if one % 2 == 0} | {2})
    counts = counts if len(counts) > 1 else [2, 4]
    if spec.kind == "cell" and command.startswith("%%"):
        first, *rest = shlex.split(command)
        kept = [word for at, word in enumerate(rest) if not _counts(word) and not (at and _counts(rest[at - 1]) == 2)]
        line = [first, "--scale", ",".join(map(str, counts)), "-N", "2", *kept, "--rehearse", SIZE]
        return f"{' '.join(word if word == SIZE else shlex.quote(word) for word in line)}\n{spec.source.code}"
    if spec.kind == "function":
        name = command.partition("(")[2].partition(",")[0]
        return (f"from distdl_jupyter import scale\n\n# With the same args= and kwargs= as before.\n"
                f'scale({name}, processes={counts}, nodes=2, backends={[*backends]}, rehearse="{SIZE}")')  # fmt: skip
    return ""


def _counts(word: str) -> int:
    """Return of how many words a flag is that says how many processes or nodes there are, 0 for another."""
    if word in ("--scale", "-N"):
        return 2
    return int(word.startswith(("--scale=", "-N")))


def _done(runs: Sequence[StudyRun]) -> int:
    """Return of how many points the runs suffice."""
    by_point: dict[tuple[str, int], list[float]] = {}
    for one in runs:
        if one.run is not None and State(one.row.state).ended:
            by_point.setdefault((one.row.backend, one.processes), []).append(one.run.rate)
    return sum(scaling.enough(found) for found in by_point.values())


def _same(found: Sequence[Straggler | None]) -> Straggler | None:
    """Return the straggler that all runs of a point name, None where one names none or another."""
    ranks = {one.rank if one else None for one in found}
    return found[-1] if len(ranks) == 1 else None
