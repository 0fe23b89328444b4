"""Where ranks stand, as pages show it: of what was really taken from threads that stand somewhere."""

from distdl_jupyter.core.events import State
from distdl_jupyter.core.failure import RankView
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.stacks import parse_snapshot
from distdl_jupyter.core.view import JobView
from distdl_jupyter.views.card import make_card
from distdl_jupyter.views.job_table import make_job_row
from distdl_jupyter.views.stacks import StacksDisplay, make_job_stacks

CELL = "/tmp/ipykernel_9/7.py"
CODE = {"sources": {CELL: {"label": "In [7]", "cell": 7, "text": "a\nb\nstep(a)\n", "first_line": 1}}}
HVD = "/v/lib/python3.11/site-packages/horovod/torch/mpi_ops.py"
WORKER = '  File "/p/distdl_jupyter/worker/rank.py", line 88 in run'
HEAD = "Current thread 0x01 (most recent call first):"
WAITS = "\n".join([HEAD, f'  File "{HVD}", line 9 in allreduce', f'  File "{CELL}", line 2 in <module>', WORKER])
STANDS = "\n".join([HEAD, f'  File "{CELL}", line 3 in <module>', WORKER])


def of(*texts, missing=None):
    about = {"worker": "/p/distdl_jupyter/worker", "main": "0x01"}
    ranks = {
        str(number): {"text": text, "host": "node-a", "pid": 40 + number, "state": "sleeping", "step": 5.0,
                      "silent": 61.0, "about": about}
        for number, text in enumerate(texts)
    }  # fmt: skip
    return parse_snapshot(3, {"t": 100.0, "why": "stall", "ranks": ranks, "missing": missing or {}}, CODE)


def test_the_rank_that_differs_comes_first_with_its_line():
    told = make_job_stacks(of(WAITS, WAITS, STANDS, WAITS))
    assert [(group.ranks, group.differs) for group in told.groups] == [((2,), True), ((0, 1, 3), False)]
    first, others = told.groups
    assert [(one.function, one.line, one.cell, one.source, one.kind) for one in first.frames] == [
        ("<module>", 3, 7, "step(a)", "cell")
    ]
    assert [one.kind for one in others.frames] == ["library", "cell"]
    assert [(one.rank, one.pid, one.silent) for one in others.processes] == [
        (0, 40, 61.0),
        (1, 41, 61.0),
        (3, 43, 61.0),
    ]
    assert (
        told.sentence
        == "rank 2 is in In [7], line 3, while ranks 0, 1 and 3 wait for it in hvd.allreduce (In [7], line 2)"
    )


def view(*events, state=State.RUNNING, **spec):
    job = JobSpec(id="20261121-024912-k3f9x", name="digits", process_count_per_node=2, created=0.0, **spec)
    found = JobView.from_spec(job)
    found.state = state
    found.ranks = [RankView(0, status="ready"), RankView(1, status="ready")]
    for one in events:
        found.apply(one)
    return job, found


STALL = {"type": "stall", "t": 70.0, "since": 9.0, "ranks": [1], "text": "No progress for 1 min: rank 1 is in x."}


def test_a_card_and_a_row_tell_of_a_stall_until_it_ends():
    spec, found = view(STALL, {"type": "stacks", "t": 70.0, "number": 1, "why": "stall", "ranks": [0, 1]})
    told = make_card(found, 80.0)
    assert (told.stall.since, told.stall.ranks, told.stall.text) == (9.0, [1], STALL["text"])
    assert [(one.number, one.why) for one in told.stacks] == [(1, "stall")]
    assert told.can_ask_stacks
    row = make_job_row(found, spec, 80.0)
    assert (row.stalled, row.message) == (True, "No progress: rank 1 differs")  # short enough for a list
    found.apply({"type": "stall", "t": 90.0, "since": None})
    assert make_card(found, 90.0).stall is None
    assert not make_job_row(found, spec, 90.0).stalled


def test_as_text_each_group_has_a_block_of_its_own():
    shown = str(StacksDisplay(**vars(of(WAITS, STANDS, WAITS))))
    first, second = shown.split("\n\n")[1:]
    assert first.splitlines() == [
        "Rank 1: sleeping, step 5, no progress for 1 min 1 s", "In [7], line 3, in <module>", "    step(a)",
    ]  # fmt: skip
    assert second.startswith("Ranks 0 and 2: sleeping, step 5, no progress for 1 min 1 s\n· horovod/torch/mpi_ops.py")


def test_as_html_blocks_keep_their_spaces_and_everything_is_escaped():
    shown = StacksDisplay(**vars(of(WAITS, STANDS, WAITS)))._repr_html_()
    assert "<pre>Rank 1: sleeping, step 5, no progress for 1 min" in shown
    assert "in &lt;module&gt;" in shown
