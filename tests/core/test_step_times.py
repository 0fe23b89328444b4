"""Step times of several ranks compared: who waits for whom, and who delays the others."""

import json
import statistics

import pytest

from distdl_jupyter.core import step_times
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.jobs.reader import PageReader


def write(path, *reports):
    """Write reports (rank, records, more fields) as a supervisor does."""
    lines = [
        {"v": 1, "t": 1.0, "type": "steps", "attempt": 0, "rank": rank, "first": 0, "size": 1,
         "records": records, **more}
        for rank, records, more in reports
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return step_times.read(path, {0: "node-a", 1: "node-b"})


def both(folder, *records, times=1):
    return write(folder / "steps.jsonl", *((rank, [record] * times, {}) for rank, record in enumerate(records)))


def parts(row):
    return [round(1000 * getattr(row, part), 6) for part in ("seconds", *step_times.PARTS)]


def test_rank_that_was_blocked_shortest_came_last_and_the_others_waited_for_it(tmp_path):
    times = both(tmp_path, [10_000, 1000, 500, 8, 6000], [10_000, 5000, 500, 8, 2000])
    # seconds, data, compute, communication, rest, waiting
    assert [parts(row) for row in times.rows] == [[10, 1, 2.5, 2, 0.5, 4], [10, 5, 2.5, 2, 0.5, 0]]


def test_each_wait_of_a_step_is_compared_for_itself(tmp_path):
    times = both(tmp_path, [10_000, 0, 0, 8, 5000, 1000], [10_000, 0, 0, 8, 1000, 4000])
    assert [(row.waiting, row.communication) for row in times.rows] == [(0.004, 0.002), (0.003, 0.002)]


def test_waits_whose_number_differs_are_compared_by_their_sums(tmp_path):
    times = both(tmp_path, [10_000, 0, 0, 8, 5000, 1000], [10_000, 0, 0, 8, 4000])
    assert [(row.waiting, row.communication) for row in times.rows] == [(0.002, 0.004), (0.0, 0.004)]


def test_record_of_several_steps_is_their_mean(tmp_path):
    times = write(tmp_path / "steps.jsonl", (0, [[40_000, 8000, 0, 64]], {"first": 6000, "size": 4}))
    assert (times.rows[0].step, times.rows[0].steps, times.rows[0].samples) == (6000, 4, 16)
    assert parts(times.rows[0]) == [10, 2, 8, 0, 0, 0]
    assert times.samples_per_second == pytest.approx(1600)


def test_report_that_another_supervisor_read_once_more_counts_once_and_a_restart_apart(tmp_path):
    report = (0, [[10_000, 0, 0, 8]], {})
    times = write(tmp_path / "steps.jsonl", report, report, (0, [[20_000, 0, 0, 8]], {"attempt": 1}))
    assert [(row.attempt, row.seconds) for row in times.rows] == [(0, 0.01), (1, 0.02)]


def test_steps_that_a_rank_has_yet_to_report_are_left_out_where_ranks_wait_for_each_other(tmp_path):
    waits, alone = [10_000, 0, 0, 8, 1000], [10_000, 0, 0, 8]
    times = write(tmp_path / "steps.jsonl", (0, [waits] * 5, {}), (1, [waits] * 3, {}))
    assert [one.steps for one in times.ranks()] == [2, 2]  # without the first
    times = write(tmp_path / "steps.jsonl", (0, [alone] * 5, {}), (1, [alone] * 3, {}))
    assert [one.steps for one in times.ranks()] == [4, 2]


def test_straggler_says_rank_host_cause_and_cost(tmp_path):
    found = both(tmp_path, [50_000, 1000, 0, 8, 40_000], [50_000, 40_000, 0, 8, 1000], times=20).straggler
    assert (found.rank, found.host, found.cause) == (1, "node-b", "data")
    assert (found.seconds, found.percent) == (pytest.approx(0.039), pytest.approx(78))
    assert str(found) == ("Rank 1 (node-b) delays every step by 39 ms (78 %). It waits longer for its data.")


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_a_late_rank_is_compared_with_the_median_of_all_others(tmp_path, count):
    waits = [1000, 12_000, 9000, 15_000, 7000, 10_000][:count]
    others = statistics.median(waits[1:])
    reports = [(rank, [[50_000, 0, 0, 8, wait]] * 20, {}) for rank, wait in enumerate(waits)]
    times = write(tmp_path / "steps.jsonl", *reports)
    assert (times.straggler.rank, times.straggler.seconds) == (0, pytest.approx((others - 1000) / 1e6))


def test_equal_ranks_have_no_straggler(tmp_path):
    assert both(tmp_path, [10_000, 1000, 0, 8, 1000], [10_000, 1100, 0, 8, 900], times=20).straggler is None


def test_ranks_that_are_late_in_turn_are_no_stragglers(tmp_path):
    late, early = [20_000, 0, 0, 8, 1000], [20_000, 0, 0, 8, 11_000]
    times = write(tmp_path / "steps.jsonl", (0, [late, early] * 10, {}), (1, [early, late] * 10, {}))
    assert times.straggler is None
    assert times.ranks()[0].waiting == pytest.approx(times.ranks()[1].waiting, rel=0.15)


@pytest.mark.parametrize(("nodes", "count"), [(1, 100), (50, 50), (125, 20), (2000, 20)])
def test_a_page_compares_fewer_steps_of_many_ranks(tmp_path, nodes, count):
    (tmp_path / "spec.json").write_text(JobSpec(id="a", name="b", node_count=nodes, process_count_per_node=8).dumps())
    write(tmp_path / "steps.jsonl", (0, [[10_000, 0, 0, 8]] * 120, {}))
    reader = PageReader(JobFolder(tmp_path))
    assert reader.steps.read()
    assert [row.step for row in reader.steps.get_times().rows] == [*range(120 - count, 120)]


def late_by(seconds):
    """Return the records of ranks 0 and 1 where rank 0 is late by so many seconds in each step."""
    micro = [round(1e6 * one) for one in seconds]
    step = [[30_000 + abs(one), 0, 0, 8] for one in micro]
    waits = [(1000 + max(0, -one), 1000 + max(0, one)) for one in micro]
    return [[[*record, wait[rank]] for record, wait in zip(step, waits, strict=True)] for rank in (0, 1)]


def compare(folder, seconds, hosts=None, **more):
    """Return the steps in which rank 0 is late by so many seconds."""
    first, second = late_by(seconds)
    write(folder / "steps.jsonl", (0, first, more), (1, second, more))
    return step_times.read(folder / "steps.jsonl", hosts or {0: "vm", 1: "vm"})


def test_rare_long_pauses_of_one_rank_are_named_with_number_and_length(tmp_path):
    found = compare(tmp_path, [0.5 if step % 10 == 9 else 0 for step in range(39)]).straggler
    assert (found.rank, found.pauses, found.pause_seconds) == (0, 3, pytest.approx(0.5))
    assert found.seconds == pytest.approx(1.5 / 38)
    assert str(found).startswith("Rank 0 (vm) paused 3 times for about 0.5 s, which delays the mean step by 39.5 ms (")


def test_pauses_inside_records_of_several_steps_are_named(tmp_path):
    seconds = [2.0 if record % 12 == 9 else 0.01 for record in range(40)]
    found = compare(tmp_path, seconds, first=6000, size=4).straggler
    assert (found.rank, found.pauses, found.pause_seconds) == (0, 3, pytest.approx(2.0, rel=0.01))


@pytest.mark.parametrize(
    "seconds",
    [
        [0.5 if step in (3, 30) else 0 for step in range(40)],
        [0.5 if step % 10 == 9 else -0.3 if step % 10 == 4 else 0 for step in range(60)],
        [0.02 if step % 10 == 9 else 0 for step in range(40)],
    ],
    ids=["two pauses are chance", "both ranks pause", "a hiccup of the machine is short"],
)
def test_pauses_that_chance_explains_blame_nobody(tmp_path, seconds):
    assert compare(tmp_path, seconds).straggler is None


def test_pauses_of_a_rank_that_is_late_in_each_step_are_not_told_apart(tmp_path):
    found = compare(tmp_path, [0.5 if step % 10 == 9 else 0.2 for step in range(60)]).straggler
    assert (found.rank, found.pauses) == (0, 0)


@pytest.mark.parametrize("count", range(7, 15))
def test_few_steps_blame_nobody(tmp_path, count):
    times = compare(tmp_path, [0.015] * count)
    assert (times.straggler, times.has_enough_steps) == (None, False)


def test_one_rank_alone_has_no_straggler(tmp_path):
    times = write(tmp_path / "steps.jsonl", (0, [[10_000, 0, 0, 8, 5000]] * 5, {}))
    assert times.straggler is None
    assert times.ranks()[0].communication == pytest.approx(0.005)
