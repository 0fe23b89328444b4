"""The supervisor keeps samples of agents whatever comes, and says once what goes wrong."""

import pytest

from distdl_jupyter.clusters.base import NodeSample, Stream
from distdl_jupyter.core.events import State
from distdl_jupyter.core.resources import ResourceHistory
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.supervisor import parts
from distdl_jupyter.supervisor.log_reader import RankReport
from distdl_jupyter.supervisor.recorder import EventRecorder
from tests.written import all_written

GB = 1e9


def recorder_of(folder, ranks=2):
    spec = JobSpec(id="20261121-024912-k3f9x", name="x", kind="function", created=1.0, process_count_per_node=ranks)
    return EventRecorder(folder, spec)


def sample(t, node=0, memory=4 * GB, about=False):
    data = {
        "t": t,
        "node": {"cpu": 100.0, "memory": memory, "limit": 16 * GB, "disk_read": 0, "disk_written": 0, "received": 0,
                 "sent": 0},
        "ranks": {str(node): [99.0, memory / 2]},
        "gpus": {},
    }  # fmt: skip
    return NodeSample(node, {**data, "about": {"host": f"gpu{node}", "cores": 8, "gpus": []}} if about else data)


def read(folder):
    reader = ResourceHistory(folder.resources)
    return [(one.t, one.node) for one in reader.read()]


def test_samples_of_several_nodes_are_kept_in_order_and_only_for_the_user(folder):
    recorder = recorder_of(folder)
    recorder.take_samples([sample(1.0, 0, about=True), sample(1.1, 1, about=True)])
    recorder.take_samples([sample(2.0, 0)])
    assert read(folder) == [(1.0, 0), (1.1, 1), (2.0, 0)]
    assert folder.resources.stat().st_mode & 0o777 == 0o600


def test_what_is_no_sample_is_left_out(folder):
    recorder = recorder_of(folder)
    recorder.take_samples([NodeSample(0, {"t": "now"}), NodeSample(0, {"t": 1.0, "node": {}}), sample(2.0)])
    assert read(folder) == [(2.0, 0)]


def test_another_supervisor_goes_on_behind_the_last_whole_sample_and_keeps_none_twice(folder):
    first = recorder_of(folder)
    first.take_samples([sample(1.0, about=True), sample(2.0)])
    first.close()
    with folder.resources.open("ab") as file:
        file.write(b'{"t":2.5,"node":')
    recorder_of(folder).take_samples([sample(1.0, about=True), sample(2.0), sample(3.0)])
    assert read(folder) == [(1.0, 0), (2.0, 0), (3.0, 0)]


def test_memory_of_torch_that_a_rank_reports_is_kept_with_the_next_sample(folder):
    recorder = recorder_of(folder)
    report = {"type": "steps", "first": 0, "size": 1, "records": [[9, 0, 0, 0]]}
    recorder.take_samples([sample(1.0, about=True)])
    for t in (2.0, 3.0):
        recorder.take(Stream(-1, 0, "out"), [RankReport({**report, "t": t, "gpu_memory": [3 * 10**9, 4 * 10**9]})])
        recorder.take_samples([sample(t)])
    recorder.close()
    before, _, after = ResourceHistory(folder.resources).read()
    assert folder.resources.read_bytes().count(b'"torch"') == 1, "what is as before is not written again"
    assert before.ranks[0].torch_allocated is None
    assert (after.ranks[0].torch_allocated, after.ranks[0].torch_reserved) == pytest.approx((3 * GB, 4 * GB))


def test_a_file_that_cannot_be_written_ends_no_job(folder):
    folder.resources.mkdir()
    recorder_of(folder).take_samples([sample(1.0)])


def test_a_job_of_many_ranks_keeps_fewer_samples_as_it_grows_old(folder):
    recorder = recorder_of(folder, ranks=800)
    recorder.take_samples([sample(float(t)) for t in range(1, 4000)])
    kept = [t for t, _ in read(folder)]
    assert kept[:100] == [float(t) for t in range(1, 101)]
    assert 4 <= kept[-1] - kept[-2] <= 5
    assert len(kept) < 2500


def test_memory_near_its_limit_is_noted_once_while_the_job_runs(folder, monkeypatch):
    monkeypatch.setattr(parts, "_CHECK_SECONDS", 0.0)
    recorder = recorder_of(folder)
    recorder.take_samples([sample(1.0, about=True, memory=15.5 * GB)])
    assert recorder.view.notes == []
    for state in (State.PREPARING, State.STARTING, State.RUNNING):
        recorder.record_state(state)
    for t in (2.0, 3.0):
        recorder.take_samples([sample(t, memory=15.5 * GB)])
    (note,) = recorder.view.notes
    assert (note["code"], note["text"]) == (
        "memory-limit",
        "The memory on gpu0 is 97 % full (500 MB of 16 GB free). Rank 0 uses the most, 7.8 GB.",
    )
    assert note["text"] in [event["text"] for event in all_written(folder) if event["type"] == "log"]
