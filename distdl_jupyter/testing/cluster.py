"""Contract tests for clusters: their descriptions, how jobs run on them, and how jobs end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from distdl_jupyter.clusters.base import NodeCheck
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.core.plan import Placement, Service
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.testing.sample import SAVE_SCRIPT, ClusterTests, RunListener, is_sentence

#: Time limit of a check in seconds: 30 s, doubled in case the machine is busy with other tests.
_CHECK_SECONDS = 60.0
_EXIT_SCRIPT = """
import os, sys
print("rank", os.environ["RANK"])
sys.exit(3 * int(os.environ["RANK"]))
"""
_LONG_OUTPUT_SCRIPT = """
import os, sys
for number in range(5000):
    print(os.environ["RANK"], "writes", number, "." * 60)
print("a line on stderr", file=sys.stderr)
os._exit(7)
"""
_VARIABLES_SCRIPT = """
import json, os
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK", "NODE_COUNT", "HOST"]
print(json.dumps({name: os.environ.get("DISTDL_" + name) for name in names}))
print(json.dumps([os.environ.get("MY_SETTING"), os.environ["DISTDL_JOB_ID"], os.environ.get("PYTHONHASHSEED")]))
"""
_FILES_SCRIPT = """
import os, pathlib
file = pathlib.Path(os.environ["DISTDL_JOB_DIR"], "outputs", "of", "rank-" + os.environ["RANK"])
file.parent.mkdir(exist_ok=True)
file.write_bytes(bytes(range(256)) * 1000)
"""
_FORK_SCRIPT = """
import os, sys, time
if os.fork() != 0:
    print("here")
time.sleep(600)
"""
_DAEMON_SCRIPT = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2):
            os.close(fd)
        time.sleep(600)
    os._exit(0)
os.wait()
print("here")
sys.stdout.flush()
os._exit(0)
"""
_COUNT_SCRIPT = """
import os, sys, time
for number in range(80):
    print("line", number)
    print("error", number, file=sys.stderr)
    time.sleep(0.05)
sys.exit(4)
"""


class StartCanceled(Exception):
    """The user has canceled the start."""


class ClusterContract(ClusterTests):
    """Base class for the tests of a cluster. Subclasses set ``name`` and ``options``."""

    # descriptions -------------------------------------------------------------------------------

    def preview(self, nodes: int, per_node: int) -> Placement:
        """Return the cluster's preview of a placement."""
        layout: dict[str, Any] = {"node_count": nodes, "process_count_per_node": per_node}
        target: dict[str, Any] = {"compute_target": self.name, "cluster_options": dict(self.options)}
        return self.cluster.preview(JobSpec(id="preview", name="preview", **layout, **target), self.checked_options)

    def test_its_name_is_that_of_its_entry_point_and_texts_are_one_line(self) -> None:
        """Specs contain the name; forms, tables and errors show the texts unchanged."""
        assert self.cluster.name == self.name
        assert self.cluster.title
        assert "\n" not in self.cluster.detail(self.checked_options)
        problem = self.cluster.unavailable(self.checked_options)
        assert problem == "" or is_sentence(problem)
        for use_gpu in (None, False):
            assert self.cluster.process_count_per_node(self.checked_options, use_gpu=use_gpu) >= 1

    def test_its_options_explain_themselves_and_can_be_left_out(self) -> None:
        """Forms, command-line flags and help texts are made from the options. Named clusters are stored as JSON."""
        for option in dataclasses.fields(self.cluster.Options):
            assert option.metadata.get("help"), option.name
        self.cluster.Options()
        assert json.loads(json.dumps(dict(self.options))) == dict(self.options)

    def test_a_preview_places_every_rank_and_reserves_nothing(self) -> None:
        """Forms request a preview at every keystroke. The ranks of a node have consecutive numbers."""
        placement = self.preview(2, 2)
        assert placement.ports == ()
        slots = [(slot.rank, slot.node, slot.local_rank) for slot in placement.ranks]
        assert slots == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
        assert placement == self.preview(2, 2)
        with contextlib.suppress(DistDLError):  # the cluster may also reject the request
            assert len(self.preview(10_000, 1).ranks) == 10_000

    def test_its_nodes_have_different_names_and_a_reason_for_being_down(self) -> None:
        """The sidebar shows all nodes, and which of them run ranks."""
        nodes = self.cluster.list_nodes(self.checked_options)
        assert len({node.name for node in nodes}) == len(nodes)
        assert all(node.name and (node.detail or node.state != "down") for node in nodes), nodes

    def test_its_checks_say_what_is_wrong_and_what_to_do(self) -> None:
        """The checks are shown as a table before a job starts, and every problem needs a remedy."""
        rows = self.check(modules=("json",), programs=("sh",))
        assert not [row for row in rows if row.level == "error"]

    def test_a_module_that_a_remote_node_lacks_is_an_error(self) -> None:
        """Remote nodes have a separate set of packages."""
        if self.cluster.is_remote:
            rows = self.check(modules=("distdl_a_missing_module",), programs=())
            assert [row for row in rows if row.level == "error" and "distdl_a_missing" in f"{row.what} {row.message}"]

    def check(self, modules: tuple[str, ...], programs: tuple[str, ...]) -> list[NodeCheck]:
        """Run the cluster's checks, assert that each row is valid, and return the rows."""
        started = time.monotonic()
        rows = self.cluster.run_checks(self.checked_options, modules=modules, programs=programs)
        assert time.monotonic() - started < _CHECK_SECONDS, f"The checks took more than {_CHECK_SECONDS:.0f} s."
        for row in rows:
            assert all((row.what, row.message)), row
            assert "\n" not in row.message + row.remedy, row
            assert row.remedy or row.level in ("ok", "info"), f"This check has no remedy: {row}"
        return rows

    # jobs ---------------------------------------------------------------------------------------

    def test_exit_codes_output_and_reports_of_ranks_arrive(self) -> None:
        """Metrics and values share a stream with printed text and are marked with the job's nonce."""
        with self.run_job(_EXIT_SCRIPT) as (_, listener):
            listener.wait_until_ended(self.ranks, self.timeout)
            listener.wait_until_gone(self.timeout)
            listener.drain()
            assert {rank: exit_.code for rank, exit_ in listener.exits.items()} == {r: 3 * r for r in range(self.ranks)}
            for rank in range(self.ranks):
                assert f"rank {rank}" in listener.get_lines(rank)
                assert {"hello", "result"} <= {report["type"] for report in listener.reports[rank]}
                assert {report.get("rank", rank) for report in listener.reports[rank]} == {rank}
            assert listener.run.why_waiting() == ""

    def test_all_output_of_a_rank_arrives_before_its_end(self) -> None:
        """The last lines contain the reason why a rank failed."""
        with self.run_job(_LONG_OUTPUT_SCRIPT) as (_, listener):
            listener.wait_until_ended(self.ranks, self.timeout)
            for rank in range(self.ranks):
                assert listener.exits[rank].code == 7
                lines = [line for line in listener.lines_at_end[rank, "out"] if " writes " in line]
                assert [int(line.split()[2]) for line in lines] == list(range(5000))
                assert {line.split()[0] for line in lines} == {str(rank)}, "The output of another rank was reported."
                assert "a line on stderr" in listener.lines_at_end[rank, "err"]

    def test_a_rank_has_its_numbers_and_the_users_variables(self) -> None:
        """The worker sets the same variables on every cluster, although launchers name theirs differently."""
        with self.run_job(_VARIABLES_SCRIPT, variables={"MY_SETTING": "ünï & 'quoted' $HOME"}) as (sample, listener):
            listener.wait_until_ended(self.ranks, self.timeout)
            for rank in range(self.ranks):
                numbers, variables = (json.loads(line) for line in listener.get_lines(rank) if line[:1] in "{[")
                node, local = divmod(rank, self.process_count_per_node)
                assert variables == ["ünï & 'quoted' $HOME", sample.id, "0"]
                assert numbers.pop("HOST")
                expected = {"RANK": rank, "WORLD_SIZE": self.ranks, "NODE_RANK": node, "NODE_COUNT": self.node_count}
                expected |= {"LOCAL_RANK": local, "LOCAL_SIZE": self.process_count_per_node}
                assert {name: int(value) for name, value in numbers.items()} == expected

    def test_a_placement_has_free_ports_and_every_rank_has_streams_of_its_own(self) -> None:
        """Ranks connect through these ports. If a port were assigned twice, two services would collide."""
        sample = self.make_sample(_EXIT_SCRIPT)
        placement = sample.place(ports=3, rank_ports=2)
        assert len(set(placement.ports)) == 3
        endpoints = {(slot.address, port) for slot in placement.ranks for port in slot.ports}
        assert len(endpoints) == 2 * self.ranks, "Two ranks have the same address and port."
        assert all((placement.address, placement.interface))
        assert [slot.rank for slot in placement.ranks] == list(range(self.ranks))
        with contextlib.closing(RunListener(sample.start(placement), sample.nonce)) as listener:
            streams = {(stream.rank, stream.name) for stream in listener.run.streams if stream.rank is not None}
            assert streams == {(rank, name) for rank in range(self.ranks) for name in ("out", "err")}
            listener.wait_until_ended(self.ranks, self.timeout)

    def test_files_come_back(self) -> None:
        """If ranks do not write into the job's own folder, the cluster copies their files there."""
        with self.run_job(_FILES_SCRIPT) as (sample, listener):
            listener.wait_until_ended(self.ranks, self.timeout)
            assert {exit_.code for exit_ in listener.exits.values()} == {0}, listener.lines
            listener.run.collect()
            for rank in range(self.ranks):
                assert (sample.folder.outputs / "of" / f"rank-{rank}").read_bytes() == bytes(range(256)) * 1000

    def test_a_service_that_never_is_ready_ends_the_start(self) -> None:
        """A failed start leaves no processes. If the service starts after the ranks, the ranks end with an error."""
        service = Service("a service", ("-c", "print('cannot begin')"), "ready now")
        sample = self.make_sample(SAVE_SCRIPT, services=(service,))
        try:
            run = sample.start()
        except LaunchFailed as failed:
            assert "cannot begin" in f"{failed.message} {failed.output}"  # noqa: PT017 - only if it starts first
        else:
            with contextlib.closing(RunListener(run, sample.nonce)) as listener:
                listener.wait_until_ended(self.ranks, self.timeout)
                assert all(exit_.code != 0 for exit_ in listener.exits.values())
        self.wait_until_gone(sample.id)

    def test_a_start_that_is_canceled_leaves_nothing(self) -> None:
        """``report`` may raise at any call; the first and the last call are tested."""
        calls = self._start_canceled(nth=0)
        for nth in sorted({1, calls} - {0}):
            self._start_canceled(nth)

    def _start_canceled(self, nth: int) -> int:
        """Start a job, cancel it at the nth call of ``report`` (0: never), and return the number of calls."""
        calls, started = 0, False

        def report(phase: str, _detail: str) -> None:
            nonlocal calls
            assert phase in ("queue", "stage", "start"), f"{phase!r} is not a phase of placing or starting."
            calls += 1
            if calls == nth:
                raise StartCanceled

        sample = self.make_sample(SAVE_SCRIPT, report=report)
        with contextlib.suppress(StartCanceled):
            listener = RunListener(sample.start(), sample.nonce)
            started = True
            listener.close()
        assert not nth or calls < nth or (calls == nth and not started), "The start continued after it was canceled."
        self.wait_until_gone(sample.id)
        return calls

    def test_two_jobs_at_once_do_not_disturb_each_other(self) -> None:
        """A job is killed by its mark. Each job has separate ports, files and output."""
        with self.run_job(SAVE_SCRIPT) as (_, first), self.run_job(SAVE_SCRIPT) as (_, second):
            for listener in (first, second):
                self.wait_for_output(listener, "here")
            first.run.signal("KILL")
            first.wait_until_ended(self.ranks, self.timeout)
            second.listen()
            assert second.exits == {}
            assert second.run.list_alive()
            second.run.signal("INT")
            second.wait_until_ended(self.ranks, self.timeout)
            assert {exit_.code for exit_ in second.exits.values()} == {5}, second.exits

    # ends ---------------------------------------------------------------------------------------

    def test_a_signal_ends_every_process_and_is_named(self) -> None:
        """Processes that training code has started end with the rank."""
        with self.run_job(_FORK_SCRIPT) as (sample, listener):
            self.wait_for_output(listener, "here")
            assert listener.run.list_alive()
            listener.run.signal("KILL")
            listener.wait_until_ended(self.ranks, self.timeout)
            assert {exit_.signal for exit_ in listener.exits.values()} == {"KILL"}, listener.exits
            listener.wait_until_gone(self.timeout)
            self.wait_until_gone(sample.id)

    def test_an_interrupt_reaches_training_code_which_may_save_and_choose_its_code(self) -> None:
        """The interrupt raises KeyboardInterrupt in training code, as in a terminal."""
        with self.run_job(SAVE_SCRIPT) as (_, listener):
            self.wait_for_output(listener, "here")
            listener.run.signal("INT")
            listener.wait_until_ended(self.ranks, self.timeout)
            for rank in range(self.ranks):
                assert "saved" in listener.lines_at_end[rank, "out"]
                assert listener.exits[rank].code == 5

    def test_an_end_is_reported_while_other_ranks_run(self) -> None:
        """Supervisors need this to stop a job within seconds of its first failure."""
        first_fails = "import os, time\nprint('here')\nos.environ['RANK'] == '0' and os._exit(9)\ntime.sleep(600)"
        with self.run_job(first_fails) as (_, listener):
            listener.wait_until(lambda: listener.exits, self.timeout, "rank 0 to end")
            assert (listener.exits[0].code, list(listener.exits)) == (9, [0])
            listener.run.signal("TERM")
            listener.wait_until_ended(self.ranks, self.timeout)

    def test_a_rank_that_leaves_with_code_0_has_no_explanation_and_its_daemon_is_ended(self) -> None:
        """The missing ``result`` report shows that the job has failed. The daemon still has the job's mark."""
        with self.run_job(_DAEMON_SCRIPT) as (sample, listener):
            listener.wait_until_ended(self.ranks, self.timeout)
            for rank, exit_ in listener.exits.items():
                assert (exit_.code, exit_.signal, exit_.evidence) == (0, None, ""), exit_
                assert "result" not in {report["type"] for report in listener.reports[rank]}
            listener.run.signal("KILL")
            listener.wait_until_gone(self.timeout)
            self.wait_until_gone(sample.id)

    def test_a_job_is_swept_by_its_handle(self) -> None:
        """Another process sweeps a job as the last resort. The first sweep finds its processes, the second none."""
        with self.run_job(_FORK_SCRIPT) as (sample, listener):
            self.wait_for_output(listener, "here")
            handle = json.loads(json.dumps(listener.run.handle()))
            assert handle == listener.run.handle(), "A handle must be plain data that another process can read."
            assert len(self.cluster.sweep(sample.id, handle)) > 0
            listener.wait_until_ended(self.ranks, self.timeout)
            listener.wait_until_gone(self.timeout)
            assert list(self.cluster.sweep(sample.id, handle)) == []
        with contextlib.suppress(DistDLError):  # a supervisor can die before it has recorded a handle
            assert list(self.cluster.sweep("20010101-000000-never", {})) == []

    def test_when_its_supervisor_is_killed_a_job_ends_or_continues_without_a_gap(self) -> None:
        """Either no process remains on any machine, or the job continues and no output line is lost or duplicated."""
        with self._orphaned_job() as orphan:
            sample = self.make_sample(_COUNT_SCRIPT, id=orphan["id"], nonce=orphan["nonce"])
            read = {(rank, name): position for rank, name, position in orphan["positions"]}
            arguments = (sample.spec, orphan["handle"], sample.context, read)
            if not self.cluster.can_attach:
                with pytest.raises(LaunchFailed):
                    self.cluster.attach(*arguments)
                self.cluster.sweep(sample.id, orphan["handle"])
            else:
                with contextlib.closing(RunListener(self.cluster.attach(*arguments), sample.nonce)) as listener:
                    listener.wait_until_ended(self.ranks, self.timeout)
                    listener.drain()
                    assert {exit_.code for exit_ in listener.exits.values()} == {4}, listener.exits
                for rank, name, lines in orphan["lines"]:
                    prefix = "line" if name == "out" else "error"
                    all_lines = [line for line in lines + listener.get_lines(rank, name) if line.startswith(prefix)]
                    assert all_lines == [f"{prefix} {number}" for number in range(80)], f"rank {rank}, {name}"
        self.wait_until_gone(sample.id)

    @contextlib.contextmanager
    def _orphaned_job(self) -> Iterator[dict[str, Any]]:
        """Start a job in another process, kill that process, and yield the record that it printed."""
        job = {"name": self.name, "options": dict(self.options), "code": _COUNT_SCRIPT, "lines": 20}
        job |= {"nodes": self.node_count, "per_node": self.process_count_per_node, "timeout": self.timeout}
        command = [sys.executable, "-m", "distdl_jupyter.testing.sample", json.dumps(job)]
        with subprocess.Popen(command, text=True, start_new_session=True, stdout=subprocess.PIPE) as process:
            try:
                line = process.stdout.readline() if process.stdout else ""
                assert line, "The process that runs the job failed; its output is above."
            finally:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
            yield json.loads(line)
