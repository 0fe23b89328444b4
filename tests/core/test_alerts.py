"""What is worth a message: each end, each stall, a metric that is no number, and a rule, each once."""

import pytest

from distdl_jupyter.core.alerts import Alert, AlertWatch, check_rules, parse_rule
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView

SPEC = JobSpec(id="20261125-010203-k3f9x", name="digits", process_count_per_node=2, created=1.0)


def told(events, rules=()):
    view, watch, found = JobView.from_spec(SPEC), AlertWatch(rules), []
    for event in ({"v": 1, "t": 10.0 + at, **event} for at, event in enumerate(events)):
        view.apply(event)
        found += watch.check(event, view)
    return found


def metric(rank, step, **values):
    return {"type": "metric", "rank": rank, "step": step, "values": values}


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [("val_acc > 0.9", 0.91, True), ("val_acc > 0.9", 0.9, False), ("loss<=1e-3", 0.001, True),
     ("top 5 acc >= 90", 89.0, False), ("loss < -.5", -1.0, True), ("loss < 1", float("nan"), False)],
)  # fmt: skip
def test_a_rule_compares_a_metric_with_a_number(text, value, holds):
    assert parse_rule(text).holds(value) is holds


def test_rules_are_kept_as_text_that_reads_the_same():
    assert check_rules(["val_acc>0.90", "loss <= 1e-3"], "notify_when") == ("val_acc > 0.9", "loss <= 0.001")
    assert check_rules("acc > 1", "notify_when") == ("acc > 1",)
    assert check_rules((), "notify_when") is None


@pytest.mark.parametrize("value", ["val_acc", "> 3", "acc == 1", "acc > high", ["a > 1", "b"], {"a": 1}])
def test_what_is_no_rule_is_refused_with_an_example(value):
    with pytest.raises(InvalidSpec) as refused:
        check_rules(value, "notify_when")
    assert "val_acc > 0.9" in refused.value.message


def test_a_rule_is_about_the_mean_over_ranks_and_told_once():
    events = [metric(0, 1, acc=0.95), metric(1, 1, acc=0.5), metric(1, 2, acc=0.9), metric(0, 3, acc=0.99)]
    first = told(events[1:], ["acc > 0.9"])
    assert first == [Alert("rule", "acc > 0.9: mean acc is 0.945 at step 3.")]


def test_a_metric_that_is_no_number_is_told_once_with_rank_and_step():
    events = [metric(0, 1, loss=1.0), metric(1, 7, loss=float("nan")), metric(0, 8, loss=float("inf"))]
    assert told(events) == [Alert("nan", "loss is nan on rank 1 at step 7.")]


def test_a_stall_and_the_end_are_told():
    events = [
        {"type": "state", "state": "running", "reason": ""},
        metric(0, 5, loss=0.25),
        {"type": "stall", "since": 1.0, "ranks": [1], "text": "No progress for 1 min."},
        {"type": "stall", "since": None, "ranks": [], "text": ""},
        {"type": "state", "state": "completed", "reason": ""},
    ]
    end = Alert("end", "The job completed. loss is 0.250 at step 5.")
    assert told(events) == [Alert("stall", "No progress for 1 min."), end]


@pytest.mark.parametrize(
    ("state", "reason", "alert"),
    [("failed", "Rank 1 failed first.", Alert("failure", "Rank 1 failed first.")),
     ("lost", "", Alert("failure", "The job failed.")), ("canceled", "", Alert("end", "The job was canceled."))],
)  # fmt: skip
def test_other_ends(state, reason, alert):
    assert told([{"type": "state", "state": state, "reason": reason}]) == [alert]


def test_a_second_supervisor_repeats_nothing():
    watch, view = AlertWatch(["acc > 0.9"]), JobView.from_spec(SPEC)
    watch.skip({"type": "note", "code": "alert-rule", "text": "acc > 0.9: mean acc is 0.945 at step 3."})
    watch.skip({"type": "note", "code": "alert-nan", "text": "loss is nan on rank 1 at step 7."})
    event = {"v": 1, "t": 2.0, **metric(0, 9, acc=1.0, loss=float("nan"))}
    view.apply(event)
    assert list(watch.check(event, view)) == []
