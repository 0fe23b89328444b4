"""Small real jobs for the contract tests of clusters, started and monitored without a supervisor.

``python -m distdl_jupyter.testing.sample JOB`` plays the role of a supervisor that the tests kill. It starts the
job described by the JSON argument, prints a record as JSON once every rank has printed some lines, and waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from distdl_jupyter.clusters.base import Cluster, Context, Exit, Run, RunNotice, Stream
from distdl_jupyter.clusters.environment import HASH_SEED
from distdl_jupyter.core import registry
from distdl_jupyter.core.plan import Placement, Plan, Service
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore, create_id
from distdl_jupyter.node import processes
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.worker import channel

#: Saves its work and sets its exit code when it is interrupted.
SAVE_SCRIPT = """
import sys, time
try:
    print("here")
    time.sleep(600)
except KeyboardInterrupt:
    print("saved")
    sys.exit(5)
"""
#: Seconds between two polls of a run, and maximum number of bytes per read.
_POLL_SECONDS, _MAX_READ_BYTES = 0.05, 64 * 1024


def is_sentence(text: str) -> bool:
    """Return whether a text is one line that ends with a period, so that forms, tables and errors can show it."""
    return bool(text.strip()) and text == text.strip() and "\n" not in text and text.endswith(".")


@dataclass
class SampleJob:
    """A job that runs the script ``code``, with its folder, spec and context. ``start`` starts it."""

    name: str
    options: Mapping[str, Any]
    code: str
    node_count: int = 1
    process_count_per_node: int = 2
    #: The user's environment variables.
    variables: Mapping[str, str] = field(default_factory=dict)
    services: tuple[Service, ...] = ()
    report: Callable[[str, str], object] = lambda _phase, _detail: None
    id: str = ""
    nonce: str = ""

    def __post_init__(self) -> None:
        self.cluster: Cluster = registry.get("clusters", self.name)
        self.checked_options = registry.check_options("clusters", self.name, dict(self.options))
        self.nonce = self.nonce or secrets.token_hex(8)
        store = JobStore()
        self.folder = store.find(self.id) if self.id else store.publish(store.prepare(create_id()))
        self.id, folder = self.folder.id, str(self.folder.path)
        self.spec = JobSpec(
            id=self.id,
            name="contract",
            kind="script",
            node_count=self.node_count,
            process_count_per_node=self.process_count_per_node,
            compute_target=self.name,
            cluster_options=dict(self.options),
            environment_variables=dict(self.variables),
            python=sys.executable,
            working_directory=folder,
        )
        variables = {"DISTDL_JOB_ID": self.id, "DISTDL_JOB_DIR": folder, "DISTDL_NONCE": self.nonce}
        variables |= {"PYTHONUNBUFFERED": "1", **HASH_SEED, **self.variables}
        names = {name for name in os.environ if not name.startswith("DISTDL_")} | {"DISTDL_CACHE"}
        inherited = {name: value for name, value in os.environ.items() if name in names}
        self.context = Context(self.folder, variables, inherited, report=self.report)
        script = self.folder.path / "script.py"
        script.write_text(self.code, encoding="utf-8")
        self.folder.spec_file.write_text(self.spec.dumps(), encoding="utf-8")
        payload = {"format": 1, "kind": "script", "script": str(script), "working_directory": folder}
        payload |= {"arguments": [], "path": [], "names": [], "sources": {}}
        (self.folder.path / "payload.json").write_text(json.dumps(payload), encoding="utf-8")

    def place(self, ports: int = 1, rank_ports: int = 0) -> Placement:
        """Place the ranks. Reserve ``ports`` ports on node 0, and ``rank_ports`` ports for each rank on its node."""
        self.context.rank_ports = rank_ports
        return self.cluster.place(self.spec, ports, self.checked_options, self.context)

    def start(self, placement: Placement | None = None) -> Run:
        """Start the ranks, each with its number in the variable RANK; place them first if necessary."""
        placement = placement or self.place()
        plan = Plan(tuple({"RANK": str(slot.rank)} for slot in placement.ranks), services=self.services)
        return self.cluster.start(self.spec, placement, plan, self.context)


class RunListener:
    """Reads the output, reports and exits of a run, as a supervisor does, and appends them to its attributes."""

    def __init__(self, run: Run, nonce: str) -> None:
        self.run = run
        self.exits: dict[int, Exit] = {}
        #: Lines by rank (None for the launcher) and stream: all, and those read before the rank's exit was reported.
        self.lines: dict[tuple[int | None, str], list[str]] = {}
        self.lines_at_end: dict[tuple[int | None, str], list[str]] = {}
        self.reports: dict[int, list[dict[str, Any]]] = {}
        self.notices: list[RunNotice] = []
        #: Position after the last complete line of each stored stream, for ``attach``.
        self.positions: dict[tuple[int, str], int] = {}
        self._nonce = nonce
        #: Open streams, each with its unfinished line.
        self._unfinished = dict.fromkeys(run.streams, b"")

    def drain(self) -> bool:
        """Read the available data of every stream; return whether there was any."""
        has_data = False
        for stream in list(self._unfinished):
            source = stream.source
            while True:
                if isinstance(source, Inbox):
                    content = source.take(_MAX_READ_BYTES)
                else:
                    content = os.read(source, _MAX_READ_BYTES) if select.select([source], [], [], 0)[0] else None
                if not content:
                    break
                has_data = True
                self._record(stream, content)
            if content == b"":  # end of stream
                if self._unfinished[stream]:
                    self._record(stream, b"\n")
                del self._unfinished[stream]
        return has_data

    def _record(self, stream: Stream, content: bytes) -> None:
        block = self._unfinished[stream] + content
        *lines, self._unfinished[stream] = block.split(b"\n")
        if stream.start is not None and stream.rank is not None:
            key = stream.rank, stream.name
            self.positions[key] = self.positions.get(key, stream.start) + len(block) - len(self._unfinished[stream])
        for line in lines:
            text, report = channel.split_line(line, self._nonce)
            if report is not None and stream.rank is not None:
                self.reports.setdefault(stream.rank, []).append(report)
            if text or report is None:
                self.lines.setdefault((stream.rank, stream.name), []).append(text.decode(errors="replace"))
                if stream.rank is None:
                    self.run.on_launcher_output(f"{text.decode(errors='replace')}\n")

    def get_lines(self, rank: int, name: str = "out") -> list[str]:
        """Return the lines of a rank so far."""
        return self.lines.get((rank, name), [])

    def listen(self) -> None:
        """Read the new output, exits and notices; wait briefly if there is no output."""
        if not self.drain():
            time.sleep(_POLL_SECONDS)
        if exits := self.run.poll():
            self.drain()
        for exit_ in exits:
            assert exit_.rank not in self.exits, f"The exit of rank {exit_.rank} was reported twice."
            self.exits[exit_.rank] = exit_
            for key in ((exit_.rank, "out"), (exit_.rank, "err")):
                self.lines_at_end[key] = list(self.lines.get(key, []))
        self.notices += self.run.take_notices()

    def wait_until(self, condition: Callable[[], object], timeout: float, description: str) -> None:
        """Listen until ``condition()`` is true. Raises AssertionError after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not condition():
            state = f"Exits: {list(self.exits.values())}. Output: { {key: self.lines[key][-5:] for key in self.lines} }"
            assert time.monotonic() < deadline, f"Timed out after {timeout:g} s waiting for {description}. {state}"
            self.listen()

    def wait_until_ended(self, ranks: int, timeout: float) -> None:
        """Listen until every rank has ended."""
        self.wait_until(lambda: len(self.exits) == ranks, timeout, f"{ranks} ranks to end")

    def wait_until_gone(self, timeout: float) -> None:
        """Listen until no process of the job is alive."""
        self.wait_until(lambda: not self.run.list_alive(), timeout, "all processes to end")

    def close(self, timeout: float = 20.0) -> None:
        """Kill the remaining processes and close the run, even after a failed test."""
        deadline = time.monotonic() + timeout
        with contextlib.suppress(Exception):  # must not hide the failure of a test
            while time.monotonic() < deadline and self.run.list_alive():
                self.run.signal("KILL")
                self.run.poll()
                time.sleep(_POLL_SECONDS)
        while self.drain() and time.monotonic() < deadline:
            pass
        self.run.poll()
        self.run.close()


class ClusterTests:
    """Base class for cluster tests: the cluster, the layout of jobs, and the check that no process remains."""

    #: The name of the entry point in the group ``distdl_jupyter.clusters``, and the options as users write them.
    name: ClassVar[str] = ""
    options: Mapping[str, Any] = {}
    node_count = 1
    process_count_per_node = 2
    #: Time limit of each step in seconds.
    timeout = 90.0

    @property
    def cluster(self) -> Cluster:
        """A new instance of the cluster."""
        cluster: Cluster = registry.get("clusters", self.name)
        return cluster

    @property
    def checked_options(self) -> Any:
        """The validated options."""
        return registry.check_options("clusters", self.name, dict(self.options))

    @property
    def ranks(self) -> int:
        """The number of ranks of a job."""
        return self.node_count * self.process_count_per_node

    def make_sample(self, code: str, **kwargs: Any) -> SampleJob:
        """Return a job that runs ``code`` and has not been started."""
        return SampleJob(self.name, self.options, code, self.node_count, self.process_count_per_node, **kwargs)

    @contextlib.contextmanager
    def run_job(self, code: str | SampleJob, **kwargs: Any) -> Iterator[tuple[SampleJob, RunListener]]:
        """Start a job and yield it with its listener; then close it and check that no process remains."""
        sample = code if isinstance(code, SampleJob) else self.make_sample(code, **kwargs)
        with contextlib.closing(RunListener(sample.start(), sample.nonce)) as listener:
            yield sample, listener
        self.wait_until_gone(sample.id)

    def wait_for_output(self, listener: RunListener, line: str) -> None:
        """Listen until every rank has printed this line."""
        ranks, description = range(self.ranks), f"{line!r} from every rank"
        listener.wait_until(lambda: all(line in listener.get_lines(rank) for rank in ranks), self.timeout, description)

    def wait_until_gone(self, job_id: str) -> None:
        """Wait until no process of a job remains on this machine. Raises AssertionError after ``timeout`` seconds."""
        deadline = time.monotonic() + self.timeout
        while remaining := processes.find_job_pids({processes.MARK: job_id}):
            assert time.monotonic() < deadline, f"These processes of job {job_id} are still running: {remaining}"
            time.sleep(0.1)


def main() -> None:
    """Start a job, print a record once every rank has printed some lines, and wait."""
    job = json.loads(sys.argv[1])
    sample = SampleJob(job["name"], job["options"], job["code"], job["nodes"], job["per_node"])
    listener = RunListener(sample.start(), sample.nonce)
    streams = [(rank, name) for rank in range(job["nodes"] * job["per_node"]) for name in ("out", "err")]
    has_lines = lambda: all(len(listener.get_lines(*stream)) >= job["lines"] for stream in streams)  # noqa: E731
    listener.wait_until(has_lines, job["timeout"], f"{job['lines']} lines from every rank")
    record = {
        "id": sample.id,
        "nonce": sample.nonce,
        "handle": listener.run.handle(),
        "positions": [[*stream, position] for stream, position in listener.positions.items()],
        "lines": [[*stream, listener.get_lines(*stream)] for stream in streams],
    }
    print(json.dumps(record), flush=True)  # noqa: T201 - the contract tests read it
    time.sleep(3600)


if __name__ == "__main__":
    main()
