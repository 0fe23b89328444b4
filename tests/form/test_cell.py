"""What a page is answered, by whoever answers: the form worked out from a cell's text and the page's choices."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import machine
from distdl_jupyter.form.arguments import get_job_options, make_cell_parser
from distdl_jupyter.form.line import split_cell
from distdl_jupyter.form.target import KernelContext
from tests.form.page import answered_apart, asked

LINE = "%%distributed -p 2 -b horovod-gloo --name digits -o run --wait --max-log-bytes 5000 --env A=1 --env MY_TOKEN"
BODY = "import horovod.torch as hvd\nbatch_size = 8\nx.sum() + lr"


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "list_gpu_numbers", list)


def test_the_line_that_is_written_means_what_the_line_that_was_read_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    form = asked(f"{LINE}\n{BODY}")
    before, after = (make_cell_parser().parse(split_cell(text).line) for text in (f"{LINE}\n", form["cell"]))
    assert {**vars(before), "node_count": 1} == vars(after)
    assert get_job_options(after, {}) == {**get_job_options(before, {}), "node_count": 1}
    assert "s3cret" not in json.dumps(form)


def test_the_answer_to_an_answer_is_the_same() -> None:
    first = asked(f"{LINE}\n{BODY}")
    assert asked(first["cell"])["cell"] == first["cell"]


def test_a_kernel_knows_the_names_and_looks_once() -> None:
    names = {"x": [1.0] * 100, "lr": 0.5}
    kernel = KernelContext(names, cell_count=3)
    form = asked(BODY, kernel, execution_count=7)
    assert [item["name"] for item in form["captured"]] == ["x", "lr"]
    assert form["title"] == {"function": "", "cell": 7, "file": ""}
    assert form["global_batch"] == 8 * form["process_count_per_node"]
    names["x"] = [1.0] * 100_000
    assert asked(BODY, kernel)["captured"] == form["captured"]
    assert asked(BODY, kernel, refresh=True)["captured"][0]["size"] != form["captured"][0]["size"]
    kernel.cell_count = 4
    del names["lr"]
    assert asked(BODY, kernel)["checks"]["level"] == "error"


def test_a_value_that_cannot_travel_is_a_problem_of_the_cell() -> None:
    form = asked("handle", KernelContext({"handle": threading.Lock()}))
    assert form["checks"]["level"] == "error"
    assert any("handle" in item["text"] for item in form["checks"]["items"])


def test_the_kernels_defaults_and_its_free_magic_are_used() -> None:
    kernel = KernelContext({}, {"process_count_per_node": 3, "distributed_backend": "torch"}, "%%distdl")
    form = asked("1", kernel)
    assert form["magic"] == "%%distdl -N 1 -p 3 -b torch --name cell -o job"
    assert asked("%%distributed -p 1\n1", kernel)["magic"].startswith("%%distdl -N 1 -p 1 -b torch")


def test_numbers_that_the_cell_sets_more_than_once_are_not_known() -> None:
    assert asked("batch_size = 8\nbatch_size = 16")["global_batch"] == 0
    assert asked("batch_size = 8")["global_batch"] == 8 * asked("1")["process_count_per_node"]


def test_a_named_cluster_can_be_chosen(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    cluster_configs.add("mini", "local", {})
    form = asked("%%distributed --compute-target mini -p 2 -b torch\n1")
    assert [one["name"] for one in form["choices"]["clusters"]] == ["local", "mini"]
    assert form["compute_target"] == "mini"
    assert form["problems"] == {}
    assert "--compute-target mini" in form["magic"]
    gone = asked("1", values={"compute_target": "none"})
    assert "Unknown cluster 'none'" in gone["problems"]["compute_target"]


def test_a_process_of_another_python_answers_the_same() -> None:
    text = f"{LINE}\n{BODY}"
    assert answered_apart(text) == asked(text)


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({"other_options": {"after": "zzzzz"}}, "after", "after: Unknown job 'zzzzz'."),
        ({"other_options": {"gpus": 2}, "use_gpu": "no"}, "gpus", "gpus is 2, but use_gpu is False."),
        ({"price_per_hour": "much"}, "price_per_hour", "price_per_hour is 'much', but must be the price"),
        ({"requirements": "missing.txt"}, "requirements", "requirements cannot be read from "),
        ({"compute_target": "none"}, "compute_target", "Unknown cluster 'none'."),
    ],
)
def test_the_form_refuses_what_submit_refuses(values: dict[str, Any], field: str, message: str) -> None:
    form = asked("1", KernelContext({}), values=values)
    assert form["problems"][field].startswith(message)
    assert form["checks"]["level"] == "error"


def test_a_plan_of_very_many_ranks_is_not_made_for_each_click() -> None:
    begun = time.process_time()
    form = asked("1", KernelContext({}), values={"node_count": 9_999, "process_count_per_node": 9_999})
    assert form["checks"]["errors"] == 0
    assert time.process_time() - begun < 10


VARIED = "lr=loguniform(1e-4,1e-1) width=64,128"
SWEPT = f"%%sweep {VARIED} -p 1 --name digits --trials 5 --metric acc --sampler random -o best\nprint(lr, width)\n"


def test_a_sweep_is_read_from_the_line_and_written_into_it() -> None:
    kernel = KernelContext({})
    found = asked(SWEPT, kernel)
    assert (found["sweep"], found["trials"], found["metric"], found["parallel"]) == (VARIED, 5, "acc", 0)
    assert found["checks"]["errors"] == 0, "the names that are varied are there"
    options = "-N 1 -p 1 -b plain --name digits"
    assert found["magic"] == f"%%sweep {VARIED} {options} --trials 5 --metric acc --sampler random -o best"
    assert asked(found["cell"], kernel)["magic"] == found["magic"]
    # Without anything to vary it is one job again, and words that only a sweep takes are left out.
    one = asked(SWEPT, kernel, values={**found["values"], "sweep": ""})
    assert one["magic"] == f"%%distributed {options} -o best"
    job = "%%distributed -p 1 --no-panel -o job\nprint(lr, width)\n"
    swept = asked(job, kernel, values={**found["values"], "parallel": 2})
    assert swept["magic"] == f"%%sweep {VARIED} {options} --trials 5 --metric acc --parallel 2 -o study"


@pytest.mark.parametrize(
    ("varied", "says"),
    [("lr", "A sweep needs at least one parameter."), ("lr=0.1", "lr=0.1 has only one value, so there is nothing to "
    "vary."),
     ("lr=uniform(0,1) width", "Cannot parse width.")],
)  # fmt: skip
def test_what_cannot_be_varied_is_said_beside_its_field(varied: str, says: str) -> None:
    chosen = {**asked("x = 1\n", KernelContext({}))["values"], "sweep": varied}
    found = asked("x = 1\n", KernelContext({}), values=chosen)
    assert found["problems"]["sweep"].startswith(says)
    assert found["checks"]["level"] == "error"
