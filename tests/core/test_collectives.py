"""Compare the last collective operations of ranks."""

import pytest

from distdl_jupyter.core import collectives
from distdl_jupyter.core.failure import may_concern_collectives

DDP = ["/v/site-packages/torch/nn/parallel/distributed.py", 9, "_sync_buffers"]
BACKWARD = ["/v/site-packages/torch/autograd/graph.py", 9, "_engine_run_backward"]


def called(operation, number, *, sizes=([3],), dtype="float", waiting=True, group="default", frames=(), last=None):
    return {"operation": operation, "number": number, "sizes": list(sizes), "dtype": dtype, "waiting": waiting,
            "group": group, "frames": list(frames), "last": last or number, "time": number}  # fmt: skip


def explained(reports, states=None, stands=None):
    states = dict.fromkeys(reports, "") | (states or {})
    reports = {rank: collectives.parse_report({"operations": operations})[0] for rank, operations in reports.items()}
    places = dict.fromkeys(reports, "In [7], line 12")
    table = collectives.group_ranks(reports, states, places)
    return table, collectives.explain(table, reports, stands or {})


def test_a_missing_rank_is_named_with_its_line():
    reports = {0: [called("all_reduce", 1, waiting=False)], 1: [called("barrier", 2, sizes=())]}
    table, finding = explained(reports, stands={0: "In [7], line 9"})
    assert (finding.code, finding.ranks) == ("collective-missed", (0,))
    assert "In [7], line 9" in finding.text
    assert [row.state for row in table] == ["done", "waiting"]


def test_different_calls_with_one_number():
    _, finding = explained({0: [called("all_reduce", 2)], 1: [called("barrier", 2, sizes=())]})
    assert (finding.code, finding.ranks) == ("collective-order", (0, 1))


def test_different_shapes_also_where_one_rank_has_finished():
    reports = {0: [called("all_reduce", 2)], 1: [called("all_reduce", 2, sizes=([4],))]}
    assert explained(reports)[1].code == "collective-mismatch"
    reports[0][0]["waiting"] = False
    assert explained(reports, {0: "finished", 1: "failed"})[1].code == "collective-mismatch"


@pytest.mark.parametrize(("number", "code"), [(5, "ddp-buffers"), (4, "ddp-buffers")])
def test_buffers_of_ddp_have_their_own_remedy(number, code):
    reports = {0: [called("broadcast", 5, frames=[DDP])], 1: [called("barrier", number, waiting=number == 5)]}
    table, finding = explained(reports)
    assert finding.code == code
    assert "model.module" in finding.remedy
    assert table[0].title == "DDP's broadcast of buffers"


def test_a_rank_that_waits_in_another_group():
    reports = {0: [called("all_reduce", 1, group="1"), called("all_reduce", 4, waiting=False)],
               1: [called("all_reduce", 5), called("all_reduce", 0, waiting=False, group="1", last=0)]}  # fmt: skip
    _, finding = explained(reports)
    assert (finding.code, finding.ranks) == ("collective-missed", (1,))


def test_uneven_data_in_the_backward_pass():
    reports = {0: [called("all_reduce", 9, frames=[BACKWARD])], 1: [called("all_reduce", 8, waiting=False)]}
    _, finding = explained(reports)
    assert finding.ranks == (1,)
    assert "drop_last" in finding.remedy


def test_equal_ranks_share_a_row_and_have_no_finding():
    table, finding = explained({rank: [called("all_reduce", 3)] for rank in range(4)})
    assert [row.ranks for row in table] == [(0, 1, 2, 3)]
    assert finding is None
    assert explained({0: [], 1: []}) == ((), None)


@pytest.mark.parametrize("report", [None, [], {}, {"operations": 3}, {"operations": [None, {}, {"frames": [[1]]}]}])
def test_invalid_reports_are_skipped(report):
    assert collectives.parse_report(report)[0] == []


@pytest.mark.parametrize(("message", "concerns"), [
    ("Timed out waiting 6000ms for recv operation to complete", True),
    ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 4000 ms", True),
    ("'label'", False),
])  # fmt: skip
def test_which_errors_come_from_collective_operations(message, concerns):
    assert may_concern_collectives({"type": "RuntimeError", "message": message}) is concerns
