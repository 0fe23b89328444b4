"""How jobs run on a cluster: who a rank is, what it says, what it brings back."""

from __future__ import annotations

import json
import socket
import stat

from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.plan import Service
from distdl_jupyter.testing.listener import Listener
from distdl_jupyter.testing.sample import SAVES
from distdl_jupyter.testing.subject import Subject
from distdl_jupyter.worker.serving.connection import NOTES, note_of

_ENDS = """
import os, sys
print("rank", os.environ["RANK"])
sys.exit(3 * int(os.environ["RANK"]))
"""
_MUCH = """
import os, sys
for number in range(5000):
    print(os.environ["RANK"], "says", number, "." * 60)
print("and this", file=sys.stderr)
os._exit(7)
"""
_LEAVES = """
import os, sys
print("here")
sys.stdout.flush()
os._exit(0)
"""
_WHO = """
import json, os
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK", "NODE_COUNT", "HOST"]
print(json.dumps({name: os.environ.get("DISTDL_" + name) for name in names}))
print(json.dumps([os.environ.get("MY_SETTING"), os.environ["DISTDL_JOB_ID"], os.environ.get("PYTHONHASHSEED")]))
"""
_BRINGS = """
import os, pathlib
kept = pathlib.Path(os.environ["DISTDL_JOB_DIR"], "outputs", "of", "rank-" + os.environ["RANK"])
kept.parent.mkdir(exist_ok=True)
kept.write_bytes(bytes(range(256)) * 1000)
"""
_IS_MET = """
import os, pathlib
from distdl_jupyter.worker.serving.connection import Listener
listener = Listener(pathlib.Path(os.environ["DISTDL_PIPES"]), int(os.environ["DISTDL_RANK"]))
print("here", flush=True)
with listener.accept() as connection:
    said = b""
    while content := connection.recv(65536):
        said += content
    connection.sendall(os.environ["DISTDL_RANK"].encode() + said[::-1])
listener.close()
"""
_GATHERS = """
import time
print("here")
time.sleep(600)
"""


class RunningContract(Subject):
    """A cluster starts a plan, carries each rank's words apart, and tells every end exactly once."""

    def test_ranks_run_and_their_codes_output_and_reports_are_told(self) -> None:
        """What a user sees first, and what decides whether a job has failed.

        Metrics and values travel in the same stream as printed text, marked with the job's nonce.
        """
        with self.running(_ENDS) as (_, listener):
            listener.until_ended(self.ranks, self.timeout)
            listener.until_gone(self.timeout)
            listener.drain()
            assert {rank: exit_.code for rank, exit_ in listener.exits.items()} == {r: 3 * r for r in range(self.ranks)}
            for rank in range(self.ranks):
                assert f"rank {rank}" in listener.said(rank)
                assert {"hello", "result"} <= {report["type"] for report in listener.reports[rank]}
                assert {report.get("rank", rank) for report in listener.reports[rank]} == {rank}
            assert listener.run.waiting() == ""

    def test_what_was_said_before_an_end_can_be_read_when_the_end_is_told(self) -> None:
        """The last lines say why a rank failed; the log would begin to end without them."""
        with self.running(_MUCH) as (_, listener):
            listener.until_ended(self.ranks, self.timeout)
            for rank in range(self.ranks):
                assert listener.exits[rank].code == 7
                said = [line for line in listener.lines_at_end[rank, "out"] if " says " in line]
                assert [int(line.split()[2]) for line in said] == list(range(5000))
                assert {line.split()[0] for line in said} == {str(rank)}, "output of another rank"
                assert "and this" in listener.lines_at_end[rank, "err"]

    def test_a_rank_that_leaves_with_code_0_before_its_end_is_told_like_that(self) -> None:
        """Its job has failed, which is seen by the report that is missing; so no explanation may stand in for it."""
        with self.running(_LEAVES) as (_, listener):
            listener.until_ended(self.ranks, self.timeout)
            for rank in range(self.ranks):
                exit_ = listener.exits[rank]
                assert (exit_.code, exit_.signal, exit_.evidence) == (0, None, ""), exit_
                assert "result" not in {report["type"] for report in listener.reports[rank]}

    def test_a_rank_knows_who_it_is_and_has_the_users_variables(self) -> None:
        """The worker's own names say it wherever the launcher's differ."""
        with self.running(_WHO, variables={"MY_SETTING": "ünï & 'quoted' $HOME"}) as (sample, listener):
            listener.until_ended(self.ranks, self.timeout)
            for rank in range(self.ranks):
                who, own = (json.loads(line) for line in listener.said(rank) if line[:1] in "{[")
                node, local = divmod(rank, self.process_count_per_node)
                assert own == ["ünï & 'quoted' $HOME", sample.id, "0"]
                assert {name: int(who[name]) for name in who if name != "HOST"} == {
                    "RANK": rank,
                    "WORLD_SIZE": self.ranks,
                    "LOCAL_RANK": local,
                    "LOCAL_SIZE": self.process_count_per_node,
                    "NODE_RANK": node,
                    "NODE_COUNT": self.node_count,
                }
                assert who["HOST"]

    def test_a_placement_names_free_ports_and_every_rank_has_a_stream_of_its_own(self) -> None:
        """Ranks meet at these ports; one offered twice would let two services collide."""
        sample = self.sample(_ENDS)
        placement = sample.place(ports=3, rank_ports=2)
        assert len(set(placement.ports)) == 3
        own = {(place.address, port) for place in placement.ranks for port in place.ports}
        assert len(own) == 2 * self.ranks, "a rank can listen on its own node"
        assert placement.address
        assert placement.interface
        assert [place.rank for place in placement.ranks] == list(range(self.ranks))
        listener = Listener(sample.start(placement), sample.nonce)
        try:
            named = {(stream.rank, stream.name) for stream in listener.run.streams if stream.rank is not None}
            assert named == {(rank, name) for rank in range(self.ranks) for name in ("out", "err")}
            listener.until_ended(self.ranks, self.timeout)
        finally:
            listener.close()

    def test_files_and_values_come_back(self) -> None:
        """Where ranks do not write into the job's own folder, it is brought there."""
        with self.running(_BRINGS) as (sample, listener):
            listener.until_ended(self.ranks, self.timeout)
            assert {exit_.code for exit_ in listener.exits.values()} == {0}, listener.lines
            listener.run.collect()
            for rank in range(self.ranks):
                kept = sample.folder.outputs / "of" / f"rank-{rank}"
                assert kept.read_bytes() == bytes(range(256)) * 1000

    def test_ranks_that_stay_are_met_from_here(self) -> None:
        """A kernel speaks to a rank on any machine by a socket here; what they say comes through whole, both ways."""
        if not self.cluster.serves:
            return
        said = bytes(range(256)) * 10_000
        with self.running(_IS_MET) as (sample, listener):
            self.until_said(listener, "here")
            for rank in range(self.ranks):
                listener.run.serve(rank)
            for rank in range(self.ranks):
                note = note_of(sample.folder.path / NOTES, rank)
                listener.until(note.exists, self.timeout, f"the note of rank {rank}")
                found = json.loads(note.read_text())
                assert stat.S_IMODE(note.stat().st_mode) == 0o600
                assert found["token"]
                with socket.socket(socket.AF_UNIX) as connection:
                    connection.settimeout(self.timeout)
                    connection.connect(found["socket"])
                    connection.sendall(said)
                    connection.shutdown(socket.SHUT_WR)
                    assert b"".join(iter(lambda: connection.recv(65536), b"")) == str(rank).encode() + said[::-1]
            listener.until_ended(self.ranks, self.timeout)
            assert {exit_.code for exit_ in listener.exits.values()} == {0}, listener.lines
        assert not list((sample.folder.path / NOTES).glob("rank-*"))

    def test_a_service_that_never_is_ready_ends_the_start_with_its_words(self) -> None:
        """Nothing is left of a start that failed half-way; where it begins later, the ranks end."""
        broken = Service("a service", ("-c", "print('cannot begin')"), "ready now")
        sample = self.sample(_GATHERS, services=(broken,))
        try:
            run = sample.start()
        except LaunchFailed as failed:
            said = f"{failed.message} {failed.output}"
            assert "cannot begin" in said
        else:
            listener = Listener(run, sample.nonce)
            try:
                listener.until_ended(self.ranks, self.timeout)
                assert all(exit_.code != 0 for exit_ in listener.exits.values())
            finally:
                listener.close()
        self.leaves_nothing(sample.id)

    def test_a_wait_that_is_canceled_leaves_nothing(self) -> None:
        """``report`` may raise: at the first word, and at the last."""
        calls = self._interrupted(after=None)
        for after in sorted({1, calls} - {0}):
            self._interrupted(after=after)

    def _interrupted(self, after: int | None) -> int:
        """Start a job and give up at the ``after``-th word; return how many words there were."""
        impatient = _Impatient(after)
        sample = self.sample(_GATHERS, report=impatient)
        try:
            listener = Listener(sample.start(), sample.nonce)
        except _EnoughError:
            assert impatient.calls == after, "the wait went on after it was canceled"
        else:
            listener.run.signal("KILL")
            listener.close()
            assert after is None or impatient.calls < after, (
                f"the wait did not end after {plural(impatient.calls, 'report')}"
            )
        self.leaves_nothing(sample.id)
        return impatient.calls

    def test_two_jobs_at_once_do_not_disturb_each_other(self) -> None:
        """Killing one goes by its mark; the other has ports, files and words of its own."""
        with self.running(_GATHERS) as (_, first), self.running(SAVES) as (_, second):
            for listener in (first, second):
                self.until_said(listener, "here")
            first.run.signal("KILL")
            first.until_ended(self.ranks, self.timeout)
            second.listen()
            assert second.exits == {}
            assert second.run.alive()
            second.run.signal("INT")
            second.until_ended(self.ranks, self.timeout)
            assert {exit_.code for exit_ in second.exits.values()} == {5}, second.exits


class _EnoughError(Exception):
    """Whoever listens has heard enough."""


class _Impatient:
    """Counts what is reported and gives up at the ``after``-th word (None: never)."""

    def __init__(self, after: int | None) -> None:
        self._after = after
        self.calls = 0

    def __call__(self, phase: str, _detail: str) -> None:
        assert phase in ("queue", "stage", "start"), f"{phase!r} is not a phase of placing or starting"
        self.calls += 1
        if self.calls == self._after:
            raise _EnoughError
