"""The launch form as a widget: what the page sends is carried out, and the job's panel appears below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ipywidgets
import pytest

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.panels.job import JobPanel
from distdl_jupyter.panels.launch import Launcher, launcher
from tests.conftest import wait_for


def alone() -> str:
    return "done"


def page(form: Any, **message: Any) -> None:
    """Send what the page would send."""
    form._handle_custom_msg(message, [])


def opened(**defaults: Any) -> Launcher:
    return launcher(alone, **{"process_count_per_node": 1, "distributed_backend": "plain", **defaults})


def test_it_is_a_widget_with_the_form_alone() -> None:
    shown = opened()
    assert isinstance(shown, ipywidgets.VBox)
    assert shown.children == (shown.form,)
    assert shown.job is None


def test_the_state_of_the_widget_holds_no_secret() -> None:
    shown = opened(environment_variables={"HF_TOKEN": "hf_abc"})
    assert "hf_abc" not in repr(shown.form.get_state())


def test_messages_of_the_page() -> None:
    shown = opened(vm_size="NC96ads_A100_v4", node_count=2, distributed_backend="torch")
    page(shown.form, type="apply", code="no-infiniband")
    assert shown.form.node_count == 1
    page(shown.form, type="environment", entries=[{"name": "A", "value": "1"}])
    assert shown.form.environment == [{"name": "A", "value": "1", "secret": False}]
    before = shown.form.answered
    page(shown.form, type="refresh")
    assert shown.form.answered > before
    before = shown.form.answered
    page(shown.form, type="look")
    assert shown.form.answered > before
    assert shown.form.place == {}
    page(shown.form, type="nonsense")


def test_a_question_about_clusters_is_answered_to_who_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    form = opened().form
    sent: list[Any] = []
    monkeypatch.setattr(form, "send", lambda content, buffers=None: sent.append(content))
    page(form, type="ask", id="a-1", ask="clusters.add", given={"name": "mine", "kind": "local", "options": {}})
    wait_for(lambda: sent, what="an answer")
    assert sent == [{"type": "answer", "id": "a-1", "value": None}]
    assert form.compute_target == "mine"
    page(form, type="ask", id="a-2", ask="clusters.remove", given={"name": "other"})
    wait_for(lambda: len(sent) > 1, what="an answer")
    assert sent[1]["id"] == "a-2"
    assert sent[1]["error"]["type"] == "ClusterNotFound"
    page(form, type="ask", id="a-3", ask="clusters.remove", given={"name": "mine"})
    wait_for(lambda: form.compute_target == "local", what="this machine")


def test_rows_of_data_from_the_page_keep_no_signature_and_the_sign_in_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    form = opened().form
    form.set_state({"data": [{"name": "x", "place": "blob://acct/cont?sig=SECRET"}], "outputs": "blob://acct/out"})
    assert form.data_now["sources"][0]["level"] == "error"
    assert "SECRET" not in repr(form.get_state())
    assert "--outputs blob://acct/out" in form.magic
    sent: list[Any] = []
    monkeypatch.setattr(form, "send", lambda content, buffers=None: sent.append(content))
    page(form, type="ask", id="a-1", ask="azure.status", given={})
    wait_for(lambda: sent, what="an answer")
    assert (sent[0]["id"], sent[0]["value"]["state"]) == ("a-1", "signed_out")


def test_submit_shows_the_panel_of_the_newest_job_below() -> None:
    shown = opened()
    page(shown.form, type="submit")
    first = shown.job
    assert first is not None, shown.form.status
    assert isinstance(shown.children[1], JobPanel)
    assert first.result(120) == "done"
    second = shown.submit()
    assert second is not None
    assert shown.jobs == [first, second]
    assert len(shown.children) == 2
    assert shown.children[1].job == second
    assert second.result(120) == "done"


def test_a_refused_submit_returns_none_and_says_why() -> None:
    shown = opened(process_count_per_node=2)
    assert shown.submit() is None
    assert "plain" in shown.form.status["text"]
    assert shown.children == (shown.form,)


def test_what_is_no_function_is_refused_in_one_sentence() -> None:
    with pytest.raises(TypeError, match=r"write launcher\(train\)"):
        launcher(alone())  # type: ignore[arg-type]
    with pytest.raises(InvalidSpec, match="Did you mean"):
        launcher(alone, node_cuont=2)
