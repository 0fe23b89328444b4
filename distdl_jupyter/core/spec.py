"""What a user asked for, as one frozen value that is written once to ``spec.json``.

A spec holds no secret: the values of environment variables whose name looks secret travel to the ranks through the
supervisor's standard input and are kept here as names only.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from distdl_jupyter.core.data import DataSource
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.worker.secretforms import looks_secret as looks_secret  # noqa: PLC0414 - for all above

Kind = Literal["cell", "function", "script", "ranks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the code of a job stands, for people: tracebacks, "Open cell", rerun."""

    code: str = ""
    #: File name that the code object carries in a traceback.
    filename: str = ""
    notebook: str = ""
    cell_id: str = ""
    execution_count: int | None = None
    #: Number of the cell's line that is line 1 of ``code`` (2 below a ``%%distributed`` line).
    first_line: int = 1
    #: The magic line, or the call, that submitted it.
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """One name that travels with the job; ``size`` in bytes as pickled."""

    name: str
    kind: str
    detail: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job as asked for. ``process_count`` = ``node_count`` x ``process_count_per_node`` ranks run.

    ``distributed_backend`` is the canonical label (``plain``, ``torch``, ``horovod-gloo``, ``horovod-mpi``, ...);
    durations are seconds, sizes bytes, ``created`` seconds since the epoch.
    """

    id: str
    name: str
    kind: Kind = "function"
    node_count: int = 1
    process_count_per_node: int = 1
    distributed_backend: str = "plain"
    backend_options: dict[str, Any] = field(default_factory=dict)
    compute_target: str = "local"
    #: Kind of the cluster that ``compute_target`` names; by default they are the same.
    cluster: str = ""
    cluster_options: dict[str, Any] = field(default_factory=dict)
    vm_size: str | None = None
    #: What one node costs in an hour, in ``currency``, and who says so; None where nobody did.
    price_per_hour: float | None = None
    currency: str = ""
    price_source: str = ""
    use_gpu: bool | None = None
    environment_variables: dict[str, str] = field(default_factory=dict)
    #: Names of variables whose values are secret and therefore stand nowhere in the job's folder.
    secret_variables: tuple[str, ...] = ()
    #: What is brought to every node before the ranks start.
    data: tuple[DataSource, ...] = ()
    #: Where outputs/ goes at the end, besides this job's folder: ``blob://account/container/prefix`` or "".
    outputs: str = ""
    max_run_duration_seconds: float | None = None
    #: A job none of whose ranks makes progress for so long is ended as failed, with its stacks; None: only shown.
    hang_timeout_seconds: float | None = None
    #: How often the ranks are started anew after a failure.
    max_restarts: int = 0
    #: With how few nodes the ranks may go on when others are gone; None: with all of them only.
    min_node_count: int | None = None
    #: The job from whose checkpoints this one goes on, "" for none.
    resumed_from: str = ""
    #: Log text beyond this is dropped with a note; metrics, states and results never are.
    max_log_bytes: int = 1_000_000_000
    #: Seconds between INT and TERM, and between TERM and KILL, when a job is stopped.
    stop_grace_seconds: float = 5.0
    python: str = ""
    working_directory: str = ""
    #: Command line after the script's name, for kind "script".
    script_arguments: tuple[str, ...] = ()
    source: Source = Source()
    captured: tuple[Captured, ...] = ()
    capture_seconds: float = 0.0
    #: Findings of the checks before the start: {"level", "code", "text", "remedy"}.
    findings: tuple[dict[str, str], ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    created: float = 0.0

    def __post_init__(self) -> None:
        if not self.cluster:
            object.__setattr__(self, "cluster", self.compute_target)

    @property
    def process_count(self) -> int:
        """World size: how many ranks run."""
        return self.node_count * self.process_count_per_node

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain JSON data."""
        return dataclasses.asdict(self)

    def dumps(self) -> str:
        """Return the text of ``spec.json``."""
        return json.dumps(self.to_json(), indent=1)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> JobSpec:
        """Build a spec from ``to_json`` data; fields of a newer version are ignored."""
        known = {f.name for f in dataclasses.fields(cls)}
        kept = {k: v for k, v in data.items() if k in known}
        kept["source"] = Source(**_known(Source, kept.get("source") or {}))
        kept["captured"] = tuple(Captured(**_known(Captured, c)) for c in kept.get("captured") or ())
        kept["data"] = tuple(DataSource(**_known(DataSource, one)) for one in kept.get("data") or ())
        for name in ("secret_variables", "script_arguments", "findings"):
            kept[name] = tuple(kept.get(name) or ())
        return cls(**kept)


def _known(cls: type, data: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in data.items() if k in cls.__dataclass_fields__}  # type: ignore[attr-defined]


_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,120}")
MAX_PROCESSES = 100_000


def check_name(name: str) -> str:
    """Return the job's name or raise InvalidSpec (1 to 120 printable characters)."""
    if not _NAME.fullmatch(name):
        raise InvalidSpec("A job's name has 1 to 120 printable characters.", field="name")
    return name


def check_count(value: object, field_name: str) -> int:
    """Return a count of nodes or processes or raise InvalidSpec (a whole number from 1 to MAX_PROCESSES)."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidSpec(f"{field_name} is {value!r}, but it takes a whole number from 1.", field=field_name)
    if value > MAX_PROCESSES:
        raise InvalidSpec(f"{field_name} is {value:,}, but the most is {MAX_PROCESSES:,}.", field=field_name)
    return value
