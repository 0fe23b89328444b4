"""Advice about the training itself, each rule both ways, and the order of all."""

from __future__ import annotations

import pytest

from distdl_jupyter.azure import find_size, load_catalogue
from distdl_jupyter.preflight import Advice, PastJob, Request, advise


def said(request: Request, *history: PastJob) -> dict[str, Advice]:
    return {advice.code: advice for advice in advise(request, load_catalogue(), history)}


def asked(count: int = 8, **more: object) -> Request:
    return Request(process_count_per_node=count, distributed_backend="horovod-gloo", cores=64, **more)


def past(number: int, count: int = 1, **more: object) -> PastJob:
    values = {"name": "digits", "code": "c0de", "is_completed": True, "seconds": 182.0} | more
    return PastJob(id=f"20261121-02491{number}-m8x{number}", process_count=count, **values)


def test_the_learning_rate_grows_with_the_global_batch() -> None:
    advice = said(asked(batch_size=32, learning_rate=0.01))["learning-rate"]
    assert advice.reason == (
        "The global batch grows from 32 to 256. Linear scaling suggests lr 0.01 → 0.08 with a warm-up."
    )
    assert advice.action == "Copy lr * hvd.size()"
    assert advice.snippet == "lr * hvd.size()"
    assert advice.change == {}
    assert "1706.02677" in advice.source


def test_an_argument_can_be_set_with_one_click() -> None:
    request = asked(3, batch_size=32, learning_rate=0.1, learning_rate_name="rate", learning_rate_is_argument=True)
    advice = said(request)["learning-rate"]
    assert advice.action == "Use rate = 0.3"
    assert advice.change == {"kwargs": {"rate": 0.3}}


def test_the_snippet_is_that_of_the_backend() -> None:
    values = {"process_count_per_node": 2, "batch_size": 32.0, "learning_rate": 0.1}
    torch = said(Request(distributed_backend="torch-gloo", **values))["learning-rate"]
    assert torch.snippet == "lr * dist.get_world_size()"
    assert said(Request(distributed_backend="ray", **values))["learning-rate"].snippet == ""


@pytest.mark.parametrize(
    "request_",
    [
        asked(1, batch_size=32, learning_rate=0.01),
        asked(8, batch_size=32, learning_rate=0.01, scales_learning_rate=True),
        asked(8, learning_rate=0.01),
        asked(8),
    ],
    ids=["one process", "scaled already", "batch unknown", "nothing known"],
)
def test_no_advice_on_the_learning_rate(request_: Request) -> None:
    assert not said(request_).keys() & {"learning-rate", "global-batch"}


def test_the_batch_alone_is_told() -> None:
    advice = said(asked(4, batch_size=64))["global-batch"]
    assert "from 64 to 256" in advice.reason
    assert advice.action == ""


def test_beyond_the_studied_batch_the_doubt_is_told() -> None:
    assert "Above 8,192" in said(asked(64, batch_size=256))["global-batch"].reason
    assert "Above 8,192" not in said(asked(32, batch_size=256))["global-batch"].reason


def test_a_job_too_small_to_gain() -> None:
    advice = said(asked(name="digits"), past(1))["small-job"]
    assert advice.reason == "One process finished digits in 3 min 2 s (job m8x1). 8 processes may not be faster."
    assert advice.change == {"node_count": 1, "process_count_per_node": 1}


def test_the_newest_run_of_the_same_code_counts_before_one_of_the_same_name() -> None:
    other = past(5, code="other", seconds=10.0)
    same = past(2, seconds=20.0)
    assert "in 20 s" in said(asked(name="digits", code="c0de"), other, past(1), same)["small-job"].reason


@pytest.mark.parametrize(
    "history",
    [
        (),
        (past(1, seconds=301.0),),
        (past(1, seconds=None),),
        (past(1, is_completed=False),),
        (past(1, count=2),),
        (past(1, name="cats", code="other"),),
    ],
    ids=["no history", "long", "unknown", "failed", "several processes", "another job"],
)
def test_no_advice_on_small_jobs(history: tuple[PastJob, ...]) -> None:
    assert "small-job" not in said(asked(name="digits", code="c0de"), *history)


def search(count: int = 4, values: tuple[str, ...] = ("a", "b", "c")) -> tuple[PastJob, ...]:
    return tuple(past(i, count=count, arguments=(value,)) for i, value in enumerate(values))


def test_a_search_over_settings() -> None:
    advice = said(asked(code="c0de"), *search())["settings-search"]
    assert "ran 3 times on several processes" in advice.reason
    assert "m8x0, m8x1 and m8x2" in advice.reason
    assert advice.change == {"node_count": 1, "process_count_per_node": 1}


@pytest.mark.parametrize(
    ("count", "history"),
    [(1, search()), (8, search(values=("a", "b"))), (8, search(values=("a", "a", "a"))), (8, search(count=1))],
    ids=["one process", "twice", "the same values", "single-process jobs"],
)
def test_no_search(count: int, history: tuple[PastJob, ...]) -> None:
    assert "settings-search" not in said(asked(count, code="c0de"), *history)


def test_other_code_is_no_search() -> None:
    assert "settings-search" not in said(asked(code="other"), *search())
    assert "settings-search" not in said(asked(code=""), *search())


def test_the_costliest_comes_first() -> None:
    request = Request(
        vm_size=find_size("NC80adis_H100_v5"), node_count=2, process_count_per_node=4, name="digits", cores=2,
        batch_size=32, learning_rate=0.01, distributed_backend="horovod-gloo",
    )  # fmt: skip
    codes = [advice.code for advice in advise(request, load_catalogue(), [past(1)])]
    assert codes == [
        "no-infiniband", "more-processes-than-gpus", "small-job", "learning-rate", "more-processes-than-cores",
        "open-local-disk",
    ]  # fmt: skip
    levels = [advice.level for advice in advise(request, load_catalogue(), [past(1)])]
    assert levels == sorted(levels, key=["error", "warning", "info"].index)


@pytest.mark.parametrize(
    ("code", "tool"),
    [
        ("import optuna\nstudy = optuna.create_study()", "optuna"),
        ("from ray import tune", "ray.tune"),
        ("import ray.tune as tune", "ray.tune"),
        ("from sklearn.model_selection import GridSearchCV, train_test_split", "GridSearchCV"),
        ("from hyperopt import fmin", "hyperopt"),
        ("from sklearn.model_selection import train_test_split", ""),
        ("import ray", ""),
        ("optuna = 1", ""),
        ("import optunax", ""),
        ("this is no code", ""),
    ],
)
def test_a_search_in_the_code_itself_is_noticed(code: str, tool: str) -> None:
    found = [one for one in advise(Request(process_count_per_node=2, code=code), ()) if one.code == "settings-search"]
    assert bool(found) is bool(tool)
    if tool:
        assert found[0].reason.startswith(f"This code already runs a hyperparameter search ({tool}).")
    assert not advise(Request(code=code), ())
