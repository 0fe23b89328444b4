"""What restarts do to the folds: ranks begin anew, and what they report again replaces what was reported before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.core.events import State
from distdl_jupyter.core.logfile import EventWriter
from distdl_jupyter.core.series import MetricStore
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import JobView
from distdl_jupyter.jobs.reader import JobReader
from distdl_jupyter.supervisor import resume
from distdl_jupyter.supervisor.run import compute_restart_delay, find_lost_nodes

SPEC = JobSpec(id="20261121-024912-k3f9", name="digits", node_count=2, process_count_per_node=2, created=100.0,
               max_restarts=3)  # fmt: skip
RESTART = {"v": 1, "t": 50.0, "type": "restart", "reason": "Rank 1 of 4 failed first: exit code 3", "rank": 1}


def metric(rank, step, value=1.0, t=10.0):
    return {"v": 1, "t": t, "type": "metric", "rank": rank, "step": step, "values": {"loss": value}}


def attempts(*runs):
    """Return the events of attempts, each {rank: steps}; a value is 100 x attempt + step."""
    events = []
    for number, run in enumerate(runs):
        events += [RESTART] if number else []
        events += [metric(rank, step, 100.0 * number + step) for rank, steps in run.items() for step in steps]
    return events


def book_of(events):
    book = MetricStore()
    for event in events:
        book.apply(event)
    return book


def rows(events):
    return [(row.step, row.low, row.high) for row in book_of(events).get("loss").get_band().rows]


def test_a_rank_that_is_gone_for_good_leaves_only_what_was_before():
    found = book_of(attempts({0: range(10), 1: range(10)}, {0: range(4, 6)}))
    assert {line.rank: line.steps for line in found.get("loss").get_curves()} == {
        0: [0, 1, 2, 3, 4, 5],
        1: [0, 1, 2, 3],
    }


def test_a_rank_that_begins_again_a_step_earlier_replaces_its_own_from_there():
    found = book_of(attempts({0: range(10), 1: range(10)}, {0: [5, 6], 1: [4, 5]}))
    lines = {line.rank: list(zip(line.steps, line.values, strict=True)) for line in found.get("loss").get_curves()}
    assert lines[0][4:] == [(4, 4), (5, 105), (6, 106)]
    assert lines[1][3:] == [(3, 3), (4, 104), (5, 105)]


def test_the_newest_value_is_that_of_the_ranks_that_are_left():
    events = attempts({0: range(10), 1: range(10)}, {0: range(4, 6)})
    view = JobView.from_spec(SPEC)
    for event in events:
        view.apply(event)
    assert book_of(events).get("loss").get_band().last == view.metrics["loss"].mean == 105


def test_another_metric_keeps_what_it_has_until_it_is_reported_again():
    book = book_of(attempts({0: range(10)}))
    book.apply({**metric(0, 9), "values": {"accuracy": 0.5}})
    book.apply(RESTART)
    book.apply(metric(0, 4))
    assert [row.step for row in book.get("accuracy").get_band().rows] == [9]
    assert [row.step for row in book.get("loss").get_band().rows] == [0, 1, 2, 3, 4]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=5))
def test_each_step_is_that_of_the_last_attempt_that_reported_it(runs):
    wanted = {}
    for number, (first, count) in enumerate(runs):
        wanted = {step: value for step, value in wanted.items() if step < first}
        wanted |= {step: 100.0 * number + step for step in range(first, first + count)}
    found = rows(attempts(*[{0: range(first, first + count)} for first, count in runs]))
    assert found == [(step, value, value) for step, value in sorted(wanted.items())]


def test_long_curves_are_cut_by_buckets():
    found = book_of(attempts({0: range(100_000)}, {0: range(50_000, 60_000)})).get("loss").get_band()
    assert found.rows[-1].step == 59_999
    steps = [row.step for row in found.rows]
    assert steps == sorted(steps)
    assert all(row.mean < 50_300 for row in found.rows if row.step < 50_000)
    assert found.last == 100 + 59_999


def test_a_view_begins_again_and_keeps_what_was_reported():
    view = JobView.from_spec(SPEC)
    for event in [*attempts({0: range(5), 1: range(5)}), RESTART]:
        view.apply(event)
    assert (view.state, len(view.restarts), view.failure) == (State.STARTING, 1, None)
    assert view.metrics["loss"].mean == 4.0
    view.apply(metric(0, 2, 102.0))
    assert (view.metrics["loss"].mean, view.metrics["loss"].step) == (102.0, 2)
    assert view.metrics["loss"].trail == [(0.0, 0.0), (1.0, 1.0)]


def test_a_restart_that_waits_in_a_queue_is_queued():
    view = JobView.from_spec(SPEC)
    view.apply({"v": 1, "t": 101.0, "type": "state", "state": "running"})
    view.apply({**RESTART, "queued": True})
    assert view.state is State.QUEUED


@pytest.mark.parametrize("sizes", [[1], [1, 2], [2]])
def test_the_world_grows_and_shrinks(sizes):
    view = JobView.from_spec(SPEC)
    for nodes in sizes:
        view.apply({"v": 1, "t": 1.0, "type": "world", "node_count": nodes, "process_count": 2 * nodes})
    last = sizes[-1]
    assert (view.node_count, view.process_count) == (last, 2 * last)
    assert [(rank.rank, rank.node, rank.local_rank) for rank in view.ranks] == [
        (rank, rank // 2, rank % 2) for rank in range(2 * last)
    ]


def test_curves_are_the_same_whether_read_at_once_or_while_the_job_goes_on(tmp_path):
    folder = JobFolder(tmp_path)
    folder.spec_file.write_text(SPEC.dumps())
    writer = EventWriter(folder.events)

    def write(events):
        for event in events:
            writer.write(event["type"], **{k: v for k, v in event.items() if k not in ("v", "t", "type")})

    write(attempts({0: range(10)}, {0: range(5, 8)}))
    late = JobReader(folder, curves=True)
    late.catch_up()
    write([metric(0, 8, 108.0), metric(0, 9, 109.0)])
    late.catch_up()
    writer.close()
    steps = [(row.step, row.mean) for row in late.curves.get("loss").get_band().rows]
    assert steps == [(step, step if step < 5 else 100 + step) for step in range(10)]


def printed(at):
    return {"v": 1, "t": 1.0, "type": "log", "rank": 0, "stream": "out", "text": "x", "at": at}


def test_a_second_supervisor_reads_the_files_of_the_last_attempt_only():
    history = resume.History()
    history.add({"v": 1, "t": 1.0, "type": "handle", "data": {"run": "slurm"}, "nonce": "a"})
    history.add(RESTART)
    history.add(printed(900))
    history.add({"v": 1, "t": 1.0, "type": "attempt"})
    assert history.positions == {}
    assert resume.find_last_start(history.events)["type"] == "restart"
    history.add({"v": 1, "t": 2.0, "type": "handle", "data": {"run": "slurm-1"}, "nonce": "a"})
    history.add(printed(7))
    assert history.positions == {(0, "out"): 7}
    assert resume.find_last_start(history.events)["data"] == {"run": "slurm-1"}


def test_output_of_the_attempt_before_is_not_taken_for_that_of_one_that_the_log_does_not_have_yet():
    history = resume.History()
    history.add(metric(0, 1, 1.0) | {"at": 950})
    history.add(RESTART)
    history.add(printed(900))
    assert (history.positions, history.event_positions, history.unlogged_restarts) == ({}, {}, 1)


def test_pauses_grow_and_end_at_half_a_minute():
    assert [compute_restart_delay(number) for number in (1, 2, 3, 4, 5, 6, 1000)] == [1, 2, 4, 8, 16, 30, 30]


def ended(view, rank, when, **how):
    view.apply({"v": 1, "t": when, "type": "rank", "rank": rank, "status": "ended", **how})


@pytest.mark.parametrize(
    ("ends", "lost"),
    [
        ({2: (10.0, "KILL"), 3: (10.1, "KILL"), 0: (13.0, "KILL"), 1: (13.0, "TERM")}, {1}),
        ({2: (10.0, "KILL"), 3: (12.0, "TERM"), 0: (12.0, "TERM"), 1: (12.0, "TERM")}, set()),
        ({2: (10.0, None), 3: (10.0, None), 0: (12.0, "TERM"), 1: (12.0, "TERM")}, {1}),
    ],
)
def test_a_node_is_lost_when_all_its_ranks_fall_at_once(ends, lost):
    view = JobView.from_spec(SPEC)
    for rank, (when, name) in ends.items():
        ended(view, rank, when, signal=name)
    assert find_lost_nodes(view) == lost
