"""The launch form without a browser: what follows from each choice, and a real job from Submit."""

from __future__ import annotations

import importlib
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distdl_jupyter.clusters import emulated_node
from distdl_jupyter.core import machine
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.events import State
from distdl_jupyter.form import state
from tests.form.page import Page, asked


def alone() -> str:
    return "done"


def horovod_train(batch_size: int = 32, lr: float = 0.01) -> tuple[int, int, float]:
    import horovod.torch as hvd

    hvd.init()
    return hvd.rank(), hvd.size(), lr


def secret_reader() -> str | None:
    import os

    return os.environ.get("HF_TOKEN")


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "cores", lambda: 2)
    monkeypatch.setattr(machine, "list_gpu_numbers", list)


def codes(form: Page) -> list[str]:
    return [advice["code"] for advice in form.advice]


def shown(form: Page) -> dict[str, Any]:
    return dict(form.shown)


def test_it_begins_with_something_that_runs() -> None:
    form = Page(horovod_train)
    assert form.distributed_backend == "horovod-gloo"
    assert form.total == "1 × 2 = 2 processes"
    assert form.checks["level"] != "error", form.checks
    assert form.name == "horovod_train"
    assert form.title["function"] == "horovod_train"


def test_what_the_page_gets_is_plain_json() -> None:
    json.dumps(shown(Page(horovod_train, vm_size="NC6s_v3", node_count=2)), allow_nan=False)


def test_defaults_are_taken_under_their_aliases() -> None:
    form = Page(
        alone, nnodes=2, nproc_per_node=3, backend="torch-gloo", name="digits", timeout=90, env={"A": "1"},
        vm_size="standard_nc96ads_a100_v4", use_gpu=False,
    )  # fmt: skip
    assert (form.node_count, form.process_count_per_node, form.automatic) == (2, 3, False)
    assert (form.distributed_backend, form.backend_options) == ("torch", {"transport": "gloo"})
    assert form.vm_size == "NC96ads_A100_v4"
    options = form.options()
    assert options["max_run_duration_seconds"] == 90
    assert options["environment_variables"] == {"A": "1"}
    assert options["use_gpu"] is False
    assert options["transport"] == "gloo"


def test_options_of_the_backend_are_defaults_too() -> None:
    form = Page(alone, distributed_backend="horovod", cycle_time_ms=2.5)
    assert form.distributed_backend == "horovod-gloo"
    assert form.options()["cycle_time_ms"] == 2.5
    assert "--cycle-time-ms 2.5" in form.magic


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"nodes": 2}, "node_count"),
        ({"vm_size": "NC1"}, "Did you mean"),
        ({"distributed_backend": "horovodd"}, "horovod-gloo"),
        ({"compute_target": "clowd"}, "local"),
        ({"node_count": 0}, "node_count"),
        ({"process_count_per_node": "three"}, "process_count_per_node"),
        ({"use_gpu": "perhaps"}, "use_gpu"),
        ({"max_run_duration_seconds": "3 h"}, "max_run_duration_seconds"),
        ({"environment_variables": ["A"]}, "environment_variables"),
    ],
)
def test_a_default_that_makes_no_sense_is_refused_in_one_sentence(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidSpec, match=named):
        Page(alone, **wrong)


def test_the_total_follows_nodes_and_processes() -> None:
    form = Page(horovod_train)
    form.choose(node_count=2, process_count_per_node=4)
    assert form.total == "2 × 4 = 8 processes"
    assert form.global_batch == 256
    assert "-N 2 -p 4" in form.magic
    assert form.cell.splitlines() == [form.magic, "horovod_train()"]


def test_printed_metrics_are_read_unless_the_form_says_no() -> None:
    form = Page(alone)
    assert "metrics-from-output" not in form.magic
    form.metrics_from_output = False
    assert "--no-metrics-from-output" in form.magic
    assert Page(alone, metrics_from_output=False).metrics_from_output is False


def test_automatic_is_one_process_per_gpu_of_the_chosen_size() -> None:
    form = Page(alone, process_count_per_node="auto")
    assert (form.process_count_per_node, form.gpu_count) == (1, 0)
    form.vm_size = "NC96ads_A100_v4"
    assert (form.process_count_per_node, form.gpu_count) == (4, 4)
    form.vm_size = "ND96isr_H100_v5"
    assert form.process_count_per_node == 8
    form.use_gpu = "no"
    assert form.process_count_per_node == 1
    form.use_gpu = ""
    form.process_count_per_node = 3
    assert not form.automatic
    form.vm_size = "NC96ads_A100_v4"
    assert form.process_count_per_node == 3
    form.automatic = True
    assert form.process_count_per_node == 4


def test_a_machine_with_gpus_begins_with_one_process_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "list_gpu_numbers", lambda: [0, 1, 2, 3])
    form = Page(alone)
    assert form.automatic
    assert form.process_count_per_node == 4


def test_what_does_not_fit_is_a_failed_check_with_its_remedy() -> None:
    form = Page(alone, process_count_per_node=2, distributed_backend="plain")
    assert form.checks["level"] == "error"
    (failed,) = [item for item in form.checks["items"] if item["level"] == "error"]
    assert "plain runs one process, but the job has 2" in failed["text"]
    assert failed["remedy"]
    form.process_count_per_node = 1
    assert form.checks["level"] == "ok"


def test_mpi_over_nodes_fits_as_far_as_the_cluster_offers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated_node, "get_shell", tuple)
    form = Page(horovod_train, node_count=2, process_count_per_node=1, distributed_backend="horovod-mpi")
    assert any("horovod-mpi cannot emulate" in item["text"] for item in form.checks["items"])
    form.node_count = 1
    assert form.checks["level"] != "error", form.checks
    monkeypatch.setattr(emulated_node, "get_shell", lambda: ("remote-shell",))
    form.node_count = 2
    assert form.checks["level"] != "error", form.checks


def test_gpus_that_are_not_there_are_named_before_the_start() -> None:
    form = Page(alone, process_count_per_node=2, distributed_backend="torch", use_gpu=True)
    assert any("but this machine has none" in item["text"] for item in form.checks["items"])


@pytest.mark.parametrize("name", ["x" * 121, "tab\there"])
def test_a_name_that_cannot_be_used(name: str) -> None:
    form = Page(alone, process_count_per_node=1, distributed_backend="plain")
    form.name = name
    assert form.checks["level"] == "error"
    form.name = "   "
    assert form.options()["name"] == "alone"
    assert form.checks["level"] == "ok"


def test_what_cannot_travel_is_named_and_found_again_when_mended() -> None:
    held = {"stream": threading.Lock()}

    def train() -> Any:
        return held

    form = Page(train, process_count_per_node=1, distributed_backend="plain")
    assert form.checks["level"] == "error"
    assert form.captured == []
    text = " ".join(f"{item['text']} {item['remedy']}" for item in form.checks["items"])
    assert "held" in text
    assert "lock" in text
    held["stream"] = "mended"  # type: ignore[assignment]
    form.refresh()
    assert form.checks["level"] == "ok"
    assert "held" in [item["name"] for item in form.captured]


def test_the_advice_of_the_picture_and_its_one_click() -> None:
    form = Page(horovod_train, vm_size="NC96ads_A100_v4", node_count=2, process_count_per_node="auto")
    assert codes(form) == ["no-infiniband", "learning-rate", "more-processes-than-cores"]
    assert form.advice[0]["headline"] == "One machine instead of 2"
    form.apply("no-infiniband")
    assert (form.vm_size, form.node_count, form.process_count_per_node) == ("ND96amsr_A100_v4", 1, 8)
    assert "no-infiniband" not in codes(form)
    form.apply("more-processes-than-cores")
    assert form.total == "1 × 2 = 2 processes"


def test_a_learning_rate_that_is_an_argument_can_be_scaled_with_one_click() -> None:
    form = Page(horovod_train, kwargs={"lr": 0.01}, process_count_per_node=2)
    assert form.advice[0]["action"] == "Use lr = 0.02"
    form.apply("learning-rate")
    assert form.cell.endswith("horovod_train(lr=0.02)")


def test_secrets_stay_in_the_kernel() -> None:
    given = {"HF_TOKEN": "hf_abc", "DATABASE": "postgres://ada:hf_l0velace@db/train", "A": "1"}
    form = Page(alone, environment_variables=given)
    assert form.environment == [
        {"name": "HF_TOKEN", "value": None, "secret": True},
        {"name": "DATABASE", "value": None, "secret": True},
        {"name": "A", "value": "1", "secret": False},
    ]
    form.set_environment([{"name": "HF_TOKEN", "value": None}, {"name": "A", "value": "2"}, {"name": "", "value": "x"}])
    assert form.options()["environment_variables"] == {"HF_TOKEN": "hf_abc", "A": "2"}
    form.set_environment([{"name": "HF_TOKEN", "value": "hf_new"}])
    assert form.options()["environment_variables"] == {"HF_TOKEN": "hf_new"}
    assert "hf_" not in json.dumps(shown(form))
    form.set_environment([])
    assert form.options()["environment_variables"] is None


def test_submit_runs_real_horovod_with_what_the_form_shows() -> None:
    form = Page(horovod_train, process_count_per_node=2, name="digits")
    form.apply("learning-rate")
    job = form.submit()
    assert job is not None, form.status
    assert form.status == {"level": "ok", "name": "digits", "job": job.id}
    assert job.results(120) == [(0, 2, 0.02), (1, 2, 0.02)]
    assert job.spec.name == "digits"


def test_submit_carries_vm_size_limit_and_secrets() -> None:
    form = Page(
        secret_reader, process_count_per_node=1, distributed_backend="plain", vm_size="NC24ads_A100_v4", timeout=3600,
        environment_variables={"HF_TOKEN": "hf_abc"},
    )  # fmt: skip
    job = form.submit()
    assert job is not None, form.status
    assert job.result(120) == "hf_abc"
    assert job.spec.vm_size == "Standard_NC24ads_A100_v4"
    assert job.spec.max_run_duration_seconds == 3600
    assert "hf_abc" not in job.folder.spec_file.read_text()


def test_a_refused_submit_says_why_and_the_form_goes_on() -> None:
    form = Page(alone, process_count_per_node=1, distributed_backend="plain")
    form.set_environment([{"name": "A=B", "value": "1"}])
    assert form.submit() is None
    assert form.status["level"] == "error"
    assert "A=B" in form.status["text"]
    form.set_environment([])
    job = form.submit()
    assert job is not None
    assert job.wait(120).state is State.COMPLETED


def test_the_job_that_ran_becomes_history() -> None:
    form = Page(horovod_train, process_count_per_node=1, distributed_backend="horovod-gloo")
    job = form.submit()
    assert job is not None
    job.wait(120)
    form.process_count_per_node = 2
    form.refresh()
    assert "small-job" in codes(form)
    (past,) = state.list_past_jobs()
    assert (past.id, past.is_completed, past.process_count) == (job.id, True, 1)
    assert past.code.startswith("def horovod_train(")
    assert 0 < (past.seconds or 0) < 120


def test_a_sweep_of_a_function_is_the_cell_that_does_it() -> None:
    form = Page(horovod_train, kwargs={"batch_size": 8, "lr": 0.1}, name="digits", process_count_per_node=1,
                distributed_backend="plain", environment_variables={"HF_TOKEN": "hf_ab"})  # fmt: skip
    assert form.magic.startswith("%%distributed ")
    form.choose(sweep="lr=loguniform(1e-4,1e-1)", trials=5, parallel=2, metric="acc")
    assert form.magic == (
        "%%sweep lr=loguniform(1e-4,1e-1) -N 1 -p 1 -b plain --name digits --env HF_TOKEN --trials 5 --metric acc "
        "--parallel 2 -o study"
    )
    assert form.cell == f"{form.magic}\nhorovod_train(batch_size=8, lr=lr)"
    assert form.checks["level"] != "error", form.checks
    form.choose(sweep="depth=1,2")
    assert "unexpected keyword argument 'depth'" in form.problems["args"]
    form.choose(sweep="lr=0.1")
    assert form.problems["sweep"].startswith("lr=0.1 has only one value, so there is nothing to vary.")


def test_deeply_nested_code_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep_training.py").write_text(f"def train():\n    return 1{' + 1' * 2000}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    form = Page(importlib.import_module("deep_training").train)
    assert form.checks["errors"] == 0, form.checks
    assert asked(f"x = 1{' + 1' * 2000}")["checks"]["errors"] == 0


def test_undefined_names_are_refused_until_the_form_allows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unfinished_training.py").write_text("def train():\n    return mislaid\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    train = importlib.import_module("unfinished_training").train
    form = Page(train)
    assert (form.checks["errors"], form.submit()) == (1, None)
    form.choose(allow_undefined=True)
    assert form.checks["errors"] == 0
    assert [one["level"] for one in form.checks["items"] if one["code"] == "undefined-name"] == ["warning"]
    assert form.options()["allow_undefined"] is True
    assert Page(train, allow_undefined=True).checks["errors"] == 0
    cell = asked("%%distributed --allow-undefined\nmislaid")
    assert (cell["checks"]["errors"], cell["values"]["allow_undefined"]) == (0, True)


def test_a_form_prints_nothing_about_large_values(capsys: pytest.CaptureFixture[str]) -> None:
    values = np.zeros(13_000_000)

    def train() -> float:
        return float(values.sum())

    form = Page(train)
    assert "large-value" in {one["code"] for one in form.checks["items"]}
    assert capsys.readouterr() == ("", "")
