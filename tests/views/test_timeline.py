"""The seven steps of a job, in every state that it can be in, from its events alone."""

from distdl_jupyter.core.data import DataSource
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.views.job_page import STEPS, job_steps

FACES = DataSource(name="faces", scheme="blob", account="acct", container="train", prefix="faces")
SPEC = JobSpec(id="20261121-024912-k3f9x", name="digits", node_count=2, process_count_per_node=2, created=100.0,
               versions={"python": "3.11.7"})  # fmt: skip
SCRIPT = [
    (100.1, "state", {"state": "queued"}),
    (100.1, "phase", {"phase": "capture", "detail": "1 name, 2 kB", "seconds": 0.5}),
    (101.0, "state", {"state": "preparing"}),
    (101.0, "phase", {"phase": "stage", "detail": "nothing to copy"}),
    (103.0, "state", {"state": "starting"}),
    (103.0, "phase", {"phase": "start", "detail": "0 of 4 processes"}),
    (104.0, "phase", {"phase": "start", "detail": "4 of 4 processes"}),
    (105.0, "phase", {"phase": "rendezvous", "detail": "waiting for rank 3"}),
    (106.0, "phase", {"phase": "train"}),
    (106.0, "state", {"state": "running"}),
    (116.0, "phase", {"phase": "collect", "detail": "4 values, 1 kB"}),
    (117.0, "phase", {"phase": "clean", "detail": "no process left"}),
    (118.0, "state", {"state": "completed"}),
]


def told(upto, spec=SPEC, more=(), now=None):
    view = JobView.of(spec)
    for t, type_, fields in [*SCRIPT[:upto], *more]:
        view.apply({"v": 1, "t": t, "type": type_, **fields})
    return job_steps(view, spec, now or view.last_sign)


def states(steps):
    return [step.state for step in steps]


def test_a_completed_job_has_seven_steps_with_times():
    steps = told(len(SCRIPT))
    assert [step.title for step in steps] == [title for title, _ in STEPS]
    assert states(steps) == ["done", "unused", "done", "unused", "done", "done", "done"]
    assert [step.seconds and round(step.seconds, 1) for step in steps] == [0.5, None, 2.0, None, 2.0, 11.0, 2.0]
    assert [step.begun for step in steps] == [99.6, None, 101.0, None, 103.0, 105.0, 116.0]
    assert [step.detail for step in steps] == [
        "1 name, 2 kB",
        "no data source",
        "nothing to copy",
        "none specified: ranks use this environment, Python 3.11.7",
        "4 of 4 processes",
        "2 × 2 = 4 processes",
        "4 values, 1 kB",
    ]
    assert [step.here for step in steps if step.here] == [
        "capture",
        "stage",
        "start",
        "rendezvous, train",
        "collect, clean",
    ]


def test_a_living_job_has_one_step_now():
    assert states(told(0)) == ["next", "unused", "next", "unused", "next", "next", "next"]
    assert states(told(4)) == ["done", "unused", "now", "unused", "next", "next", "next"]
    assert states(told(7)) == ["done", "unused", "done", "unused", "now", "next", "next"]
    running = told(10, now=109.0)
    assert states(running) == ["done", "unused", "done", "unused", "done", "now", "next"]
    assert running[5].seconds == 4.0


def test_data_is_named_and_its_bytes_are_counted():
    import dataclasses

    spec = dataclasses.replace(SPEC, data=(FACES,))
    staged = {"node": 0, "host": "a", "source": "faces", "done": 5_000_000, "total": 9_000_000, "files": 1, "of": 2,
              "cached": 1_000_000}  # fmt: skip
    steps = told(4, spec, [(102.0, "staging", staged)])
    assert (steps[1].state, steps[1].detail) == ("done", "already there: blob://acct/train/faces")
    assert steps[2].detail == "5.0 MB of 9.0 MB, 1.0 MB already there"


def test_the_step_in_which_a_job_failed():
    failed = (117.5, "state", {"state": "failed"})
    assert states(told(12, more=[failed])) == ["done", "unused", "done", "unused", "done", "failed", "done"]
    refused = told(4, more=[(102.0, "state", {"state": "failed"})])
    assert states(refused) == ["done", "unused", "failed", "unused", "unused", "unused", "unused"]
    assert refused[6].detail == "not reached"
    assert states(told(10, more=[(107.0, "state", {"state": "lost"})]))[5] == "failed"


def test_a_canceled_job_stopped_where_it_was():
    steps = told(10, more=[(107.0, "state", {"state": "canceling"}), (108.0, "state", {"state": "canceled"})])
    assert states(steps) == ["done", "unused", "done", "unused", "done", "stopped", "unused"]
    assert steps[5].seconds == 3.0


def test_an_image_is_named():
    import dataclasses

    spec = dataclasses.replace(SPEC, cluster_options={"environment": "train:3"})
    assert told(1, spec)[3].detail == "already there: train:3"
