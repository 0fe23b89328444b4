"""The specification of a job: one frozen value that is written once to ``spec.json``.

It contains no secrets: the values of secret variables reach the ranks through the supervisor's standard input.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from distdl_jupyter.core.options import JobOptions

Kind = Literal["cell", "function", "script", "ranks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSource:
    """The origin of a job's code, for tracebacks, "Open cell" and reruns; ``filename`` is that of its code object."""

    code: str = ""
    filename: str = ""
    notebook: str = ""
    cell_id: str = ""
    execution_count: int | None = None
    #: Line number in the cell of line 1 of ``code`` (2 below a ``%%distributed`` line).
    first_line: int = 1
    #: The magic line or Python call that submitted the job.
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """One variable that is sent with the job; ``size`` in bytes as pickled."""

    name: str
    kind: str
    detail: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The study of a job, "scale" or "sweep", identical in all its jobs; each of its ``size`` parts runs at least once.

    ``plan`` is the request as plain JSON data, and ``id`` has the format of job ids.
    """

    kind: str
    id: str
    name: str
    size: int
    plan: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(JobOptions):
    """The specification of a job. It runs on ``process_count`` = ``node_count`` x ``process_count_per_node`` ranks.

    ``distributed_backend`` is the canonical label, and ``cluster`` the kind of the cluster that ``compute_target``
    names. ``environment_variables`` are those that are not secret; of the ``secret_variables``, only the names are
    stored. Sizes are in bytes, ``created`` is in seconds since the epoch.
    """

    id: str
    name: str
    kind: Kind = "function"
    backend_options: dict[str, Any] = field(default_factory=dict)
    cluster: str = ""
    cluster_options: dict[str, Any] = field(default_factory=dict)
    currency: str = ""
    price_source: str = ""
    secret_variables: tuple[str, ...] = ()
    #: In check mode {"steps", "replay"} (see worker.hooks.check), otherwise empty.
    check: dict[str, Any] = field(default_factory=dict)
    #: The job from whose checkpoints this one continues, or "".
    resumed_from: str = ""
    #: The step of the checkpoint that the user selected for this job, or None for the newest or an unknown one.
    forked_at: float | None = None
    #: The queued job that this one replaces, or "". Jobs that waited for it wait for this one.
    moved_from: str = ""
    group: Group | None = None
    #: For a trial of a sweep: its number, from 0, and the values of its parameters.
    trial: int | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    python: str = ""
    working_directory: str = ""
    script_arguments: tuple[str, ...] = ()
    source: CodeSource = CodeSource()
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
        """World size: the number of ranks."""
        return self.node_count * self.process_count_per_node

    @property
    def most_processes(self) -> int:
        """Process count of the largest run of the scaling study, or of the job itself."""
        return max(processes for processes, _ in self._list_sizes())

    @property
    def most_processes_per_node(self) -> int:
        """Maximum processes on a node. Cores are divided by it, so that all runs use the same number of threads."""
        return max(processes // nodes for processes, nodes in self._list_sizes())

    def _list_sizes(self) -> list[tuple[int, int]]:
        plan = self.group.plan if self.group is not None and self.group.kind == "scale" else {}
        sizes = zip(plan.get("processes", ()), plan.get("nodes", ()), strict=True)
        return [(self.process_count, self.node_count), *sizes]

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain JSON data."""
        return dataclasses.asdict(self)

    def dumps(self) -> str:
        """Return the text of ``spec.json``."""
        return json.dumps(self.to_json(), indent=1)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> JobSpec:
        """Build a spec from ``to_json`` data; unknown fields are ignored. Raises msgspec.ValidationError."""
        return msgspec.convert(data, cls)


@dataclass(frozen=True, slots=True)
class GitState:
    """The repository in which the job was submitted; ``diff`` contains the changes since ``commit``, without secrets.

    ``untracked`` is the number of untracked files; ``cut`` is true if the stored diff was truncated.
    """

    commit: str
    branch: str = ""
    remote: str = ""
    diff: str = ""
    cut: bool = False
    untracked: int = 0

    def __str__(self) -> str:
        """Return the state as text, such as ``main 1a2b3c4, with changes``."""
        changed = ", with changes" if self.diff else ", with new files" if self.untracked else ""
        return f"{self.branch} {self.commit[:10]}".strip() + changed


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """The Python environment of a job: ``packages`` maps distributions to versions; "" and None mean unknown."""

    python: str = ""
    executable: str = ""
    platform: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    git: GitState | None = None

    def freeze(self) -> str:
        """Return the packages as a requirements.txt."""
        split = ((name, version, *version.partition(" @ ")[1:]) for name, version in self.packages.items())
        return "".join(f"{name} @ {url}\n" if sep else f"{name}=={version}\n" for name, version, sep, url in split)

    def __str__(self) -> str:
        """Return the packages as a requirements.txt, with everything else in comments."""
        comments = {"Python": self.python.partition(" ")[0], "at": self.executable, "on": self.platform}
        comments |= {"git": str(self.git), "remote": self.git.remote} if self.git else {}
        return "".join(f"# {name} {value}\n" for name, value in comments.items() if value) + self.freeze()


#: The environment of a job that has not started.
UNKNOWN = JobEnvironment()
