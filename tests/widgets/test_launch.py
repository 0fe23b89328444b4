"""The launch form as a widget: what the page sends is carried out, and the job's panel appears below."""

from __future__ import annotations

from typing import Any

import pytest

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.jobs import output
from distdl_jupyter.views.sweep import SWEEP_MIME
from distdl_jupyter.views.wire import handle_request
from distdl_jupyter.widgets.job import JobPanel
from distdl_jupyter.widgets.launch import LaunchPanel, launcher
from tests.client import swept
from tests.conftest import wait_for


def alone() -> str:
    return "done"


def page(form: Any, **message: Any) -> None:
    """Send what the page would send."""
    form._handle_custom_msg(message, [])


def opened(**defaults: Any) -> LaunchPanel:
    return launcher(alone, **{"process_count_per_node": 1, "distributed_backend": "plain", **defaults})


def answered(form: Any, monkeypatch: pytest.MonkeyPatch, ask: str, **given: Any) -> Any:
    """Return what the page is answered to one question."""
    sent: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(form, "send", lambda content, buffers=None: sent.append(content))
        page(form, type="request", id="a-1", call=ask, arguments=given)
        wait_for(lambda: sent, what="an answer")
    assert (sent[0]["type"], sent[0]["id"]) == ("answer", "a-1")
    return sent[0].get("value", sent[0].get("error"))


def test_neither_widget_nor_answer_holds_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    form = opened(environment_variables={"HF_TOKEN": "hf_abc"}).form
    typed = [{"name": "HF_TOKEN", "value": None}, {"name": "MY_KEY", "value": "hf_def"}]
    found = answered(form, monkeypatch, "form.state", request={"environment": typed, "values": {}})
    assert [one["secret"] for one in found["environment"]] == [True, True]
    assert "hf_" not in repr(found)
    assert "hf_" not in repr(form.get_state())
    assert form.options == form.compute_state().options == found["options"]


def test_the_page_is_answered_what_follows_from_what_it_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    form = opened(vm_size="NC96ads_A100_v4", node_count=2, distributed_backend="torch").form
    first = answered(form, monkeypatch, "form.state", request={})
    assert first["values"]["node_count"] == 2
    found = answered(form, monkeypatch, "form.state", request={"values": first["values"], "apply": "no-infiniband"})
    assert found["values"]["node_count"] == 1
    again = answered(form, monkeypatch, "form.state", request={})
    assert again["values"] == found["values"], "a page that is opened again goes on"
    wrong = answered(form, monkeypatch, "form.state", request={"values": {**first["values"], "node_count": 0}})
    assert (wrong["field"], wrong["message"]) == ("node_count", "node_count must be a number from 1 to 10,000.")
    page(form, type="nonsense")


def test_submit_shows_the_panel_of_the_newest_job_below(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, jobs = opened(), []
    shown.observe(lambda change: jobs.append(change["new"]), "job")
    chosen = answered(shown.form, monkeypatch, "form.state", request={})["values"]
    told = answered(shown.form, monkeypatch, "form.submit", request={"values": {**chosen, "name": "mine"}})
    first = shown.job
    assert first is not None
    assert told == {"name": "mine", "job": first.id}
    assert isinstance(shown.children[1], JobPanel)
    assert first.result(120) == "done"
    second = shown.submit()
    assert shown.jobs == jobs == [first, second]
    assert shown.options["process_count_per_node"] == 1
    assert len(shown.children) == 2
    assert shown.children[1].job == second
    assert second.result(120) == "done"


def test_submit_starts_a_sweep_and_shows_the_cell_that_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = launcher(swept.trains, kwargs={"epochs": 1}, process_count_per_node=1, distributed_backend="plain")
    first = answered(shown.form, monkeypatch, "form.state", request={})["values"]
    chosen = {**first, "sweep": "lr=0.01,0.02 width=integers(1,4)", "trials": 1}
    cell = answered(shown.form, monkeypatch, "form.state", request={"values": chosen})["cell"]
    told = answered(shown.form, monkeypatch, "form.submit", request={"values": chosen})
    (found,) = shown.sweeps
    assert told == {"name": "trains", "job": found.id}
    assert shown.children[1].outputs[0]["data"][SWEEP_MIME]["id"] == found.id
    found.wait(120)
    assert [one.job.spec.parameters.keys() for one in found.study.trials] == [{"lr", "width"}]
    assert cell.splitlines() == [
        "%%sweep lr=0.01,0.02 width=integers(1,4) -N 1 -p 1 -b plain --name trains --trials 1 -o study",
        "trains(epochs=1, lr=lr, width=width)",
    ]
    assert not shown.jobs


def test_a_request_is_always_answered() -> None:
    calls = {"divide": lambda by: 1 / by}
    assert handle_request(calls, {"call": "dance"})["error"]["hint"] == "Reload the page."
    error = handle_request(calls, {"call": "divide", "arguments": {"by": 0}})["error"]
    assert error["message"].startswith("ZeroDivisionError")
    assert "TypeError" in handle_request(calls, {"call": "divide"})["error"]["message"]


def test_other_front_ends_show_the_call_that_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "get_cell_id", lambda: "vscode-notebook-cell:/home/ada/digits.ipynb#W0")
    form = opened().form
    assert form._view_name == "HTMLView"
    assert "submit(alone, process_count_per_node=2)" in form.value


def test_what_is_no_function_is_refused_in_one_sentence() -> None:
    with pytest.raises(InvalidSpec, match=r"Call launcher\(train\)"):
        launcher(alone())  # type: ignore[arg-type]
    with pytest.raises(InvalidSpec, match="Did you mean"):
        launcher(alone, node_cuont=2)
