"""What is told of a job is a pure function of its events, and holds nothing that is the user's own."""

from distdl_jupyter.core.data import DataSource
from distdl_jupyter.core.spec import JobSpec, Source
from distdl_jupyter.monitoring.account import account

SPEC = JobSpec(
    id="20261121-024912-k3f9x", name="ann's secret plan", node_count=2, process_count_per_node=1,
    distributed_backend="horovod-gloo", compute_target="anns-lab", cluster="ssh", created=100.0,
    working_directory="/home/ann/plan", script_arguments=("--key", "abc"), environment_variables={"WHO": "ann"},
    source=Source(code="ann = 1", filename="/home/ann/x.py", command="%%distributed --name plan"),
    data=(DataSource(name="faces", scheme="path", path="/home/ann/faces"),),
)  # fmt: skip


def event(t, type_, **fields):
    return {"v": 1, "t": t, "type": type_, **fields}


def phase(t, name, **more):
    return event(t, "phase", phase=name, **more)


DONE = [
    event(100.0, "state", state="queued", reason=""),
    phase(100.0, "capture", detail="ann", seconds=0.2),
    event(101.0, "state", state="preparing"),
    phase(101.0, "stage", detail="faces"),
    event(102.0, "staging", node=0, host="anns-box", source="faces", done=50, total=100, files=1, of=2, cached=0),
    event(103.0, "staging", node=0, host="anns-box", source="faces", done=100, total=100, files=2, of=2, cached=30),
    event(104.0, "state", state="starting"),
    phase(104.0, "start", detail="0 of 2 processes"),
    phase(106.0, "rendezvous"),
    phase(107.0, "train"),
    event(107.0, "state", state="running"),
    event(108.0, "log", rank=0, stream="out", text="ann was here"),
    event(108.5, "metric", rank=0, step=1, values={"anns_loss": 0.1}),
    phase(117.0, "collect"),
    phase(118.0, "clean"),
    event(118.5, "state", state="completed", reason=""),
]


def spans(told):
    return [(span.name, span.begin, span.end) for span in told.spans]


def measures(told):
    return {measure.name: measure.number for measure in told.measures}


def test_the_parts_of_a_completed_job():
    told = account(SPEC, DONE)
    assert spans(told) == [
        ("job", 100.0, 118.5),
        ("queue", 100.0, 101.0),
        ("stage", 101.0, 104.0),
        ("start", 104.0, 106.0),
        ("rendezvous", 106.0, 107.0),
        ("train", 107.0, 117.0),
        ("collect", 117.0, 118.0),
    ]
    assert not any(span.failed for span in told.spans)
    assert told.spans[0].attributes == {
        "distdl.job.id": "20261121-024912-k3f9x", "distdl.cluster.kind": "ssh", "distdl.backend": "horovod-gloo",
        "distdl.world_size": 2, "distdl.node_count": 2, "distdl.state": "completed", "distdl.exit": "0",
    }  # fmt: skip
    assert measures(told) == {
        "distdl.jobs.submitted": 1, "distdl.jobs.failed": 0, "distdl.job.queue.duration": 1.0,
        "distdl.job.train.duration": 10.0, "distdl.job.duration": 18.5, "distdl.job.staged": 70,
    }  # fmt: skip


def test_a_queue_of_the_cluster_is_told_apart_from_the_start():
    queued = [
        event(100.0, "state", state="queued"),
        phase(100.5, "stage"),
        phase(101.0, "start", detail="pending: Resources"),
        event(131.0, "state", state="starting"),
        phase(133.0, "train"),
        event(133.0, "state", state="running"),
        event(140.0, "state", state="completed"),
    ]
    assert spans(account(SPEC, queued))[1:] == [
        ("stage", 100.5, 101.0),
        ("queue", 101.0, 131.0),
        ("start", 131.0, 133.0),
        ("train", 133.0, 140.0),
    ]


def test_the_part_in_which_a_job_failed_is_marked():
    failed = [
        *DONE[:13],
        event(109.0, "result", rank=1, ok=False, error={"type": "KeyError", "message": "ann", "time": 109.0}),
        event(109.5, "rank", rank=1, status="ended", code=1, signal=None),
        phase(110.0, "collect"),
        event(111.0, "state", state="failed", reason="Rank 1 of 2 failed first: KeyError: 'ann'"),
    ]
    told = account(SPEC, failed)
    assert [span.name for span in told.spans if span.failed] == ["job", "train"]
    assert told.spans[0].attributes["distdl.exit"] == "1"
    assert told.spans[0].attributes["distdl.failed_rank"] == 1
    assert measures(told)["distdl.jobs.failed"] == 1


def test_a_job_that_was_refused_before_any_phase():
    told = account(SPEC, [event(100.0, "state", state="queued"), event(101.0, "state", state="failed", reason="ann")])
    assert spans(told) == [("job", 100.0, 101.0), ("queue", 100.0, 101.0)]
    assert [span.failed for span in told.spans] == [True, True]


def test_nothing_of_the_user_is_told():
    said = repr(account(SPEC, DONE))
    for word in ("ann", "plan", "abc", "faces", "/home", "WHO", "loss", "lab", "box"):
        assert word not in said
