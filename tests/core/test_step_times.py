"""Steps of several ranks compared: who waited for whom, and who slows the others."""

import json

import pytest

from distdl_jupyter.core import step_times


def write(path, *reports):
    """Write reports (rank, records, more fields) as a supervisor does."""
    lines = [
        {"v": 1, "t": 1.0, "type": "steps", "attempt": 0, "rank": rank, "first": 0, "size": 1, "sending": 0,
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
    assert str(found) == (
        "Rank 1 on node-b slows the others by 39 ms of each step (78 %): it waits longer for its data."
    )


def test_equal_ranks_have_no_straggler(tmp_path):
    assert both(tmp_path, [10_000, 1000, 0, 8, 1000], [10_000, 1100, 0, 8, 900], times=20).straggler is None


def test_ranks_that_are_late_in_turn_are_no_stragglers(tmp_path):
    late, early = [20_000, 0, 0, 8, 1000], [20_000, 0, 0, 8, 11_000]
    times = write(tmp_path / "steps.jsonl", (0, [late, early] * 10, {}), (1, [early, late] * 10, {}))
    assert times.straggler is None
    assert times.ranks()[0].waiting == pytest.approx(times.ranks()[1].waiting, rel=0.15)


def test_one_rank_alone_has_no_straggler(tmp_path):
    times = write(tmp_path / "steps.jsonl", (0, [[10_000, 0, 0, 8, 5000]] * 5, {}))
    assert times.straggler is None
    assert times.ranks()[0].communication == pytest.approx(0.005)


def test_missing_file_has_no_steps(tmp_path):
    assert step_times.read(tmp_path / "steps.jsonl").rows == []
