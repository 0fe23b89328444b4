"""The form's rows of data: typed, refused beside them, written into the line and read back, and read by a job."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.clusters.local import LocalCluster
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.form import datalook, datarows
from distdl_jupyter.form.datalook import Found
from distdl_jupyter.form.schema import DataRow
from tests.conftest import wait_for
from tests.form.page import Page, answered_apart, asked

#: As a notebook has it: nothing else of its file could travel.
TRAIN = """
def train():
    from distdl_jupyter import data_path
    return (data_path("labels") / "a.txt").read_text()
"""


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    folder = tmp_path / "labels"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("seven")
    (folder / "deep" / "b.txt").write_text("x" * 1200)
    return folder


def row(name: str, place: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "place": place, "shard": False, "mode": "download", **more}


def form(**given: Any) -> Page:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(TRAIN, names)
    return Page(names["train"], process_count_per_node=1, distributed_backend="plain", name="n", **given)


def said(model: Page, number: int = 0) -> dict[str, Any]:
    """What stands beside a row in the end."""

    def looked() -> bool:
        model.look()
        return not model.data_now["looking"]

    wait_for(looked)
    found: dict[str, Any] = model.data_now["sources"][number]
    return found


LINE = (
    "%%distributed -N 1 -p 1 -b plain --name n --data 'train=blob://acct/cont/a b?shard' --data labels=./labels "
    "--data 'm=blob://acct/cont?mode=mount' --outputs blob://acct/results -o job"
)


def test_a_line_becomes_rows_and_rows_the_same_line() -> None:
    shown = asked(f"{LINE}\n1")
    assert shown["data"] == [
        row("train", "blob://acct/cont/a b", shard=True),
        row("labels", "./labels"),
        row("m", "blob://acct/cont", mode="mount"),
    ]
    assert shown["outputs"] == "blob://acct/results"
    assert shown["magic"] == LINE
    again = asked("1", chosen={name: shown[name] for name in ("data", "outputs")})
    assert again["options"]["data"] == shown["options"]["data"]
    assert again["options"]["outputs"] == "blob://acct/results"


def test_what_cannot_be_read_stays_in_its_row_and_out_of_the_line() -> None:
    typed = [row("train", "blob://Acct/cont"), row("my data", "./x"), row("", ""), row("empty", "")]
    shown = asked("1", chosen={"data": typed, "outputs": "./out", "name": "n"})
    assert shown["data"] == typed
    beside = [one["text"] for one in shown["data_now"]["sources"]]
    assert beside == [
        "'Acct' is not a valid storage account name.",
        "'my data' is not a valid name of a data source.",
        "",
        "empty has no address.",
    ]
    assert shown["data_now"]["outputs"]["text"] == "'./out' is not a valid Azure Blob address."
    assert "blob://account/container/prefix" in shown["data_now"]["outputs"]["remedy"]
    assert shown["checks"]["errors"] == 4
    assert "--data" not in shown["magic"]
    assert "--outputs" not in shown["magic"]
    begun = asked("%%distributed --data train=blob://Acct/cont\n1")
    assert begun["data"] == [row("train", "blob://Acct/cont")]


def test_of_two_rows_with_one_name_the_second_is_refused(labels: Path) -> None:
    model = form(data=[f"labels={labels}", f"LABELS={labels}"])
    assert said(model, 0)["level"] == "ok"
    assert said(model, 1)["text"] == "Another row also has the name LABELS."
    assert model.submit() is None
    assert model.status["level"] == "error"


@pytest.mark.parametrize(
    "place", ["blob://acct/c?sv=1&sig=abcSECRET", "https://a.blob.core.windows.net/c?sig=abcSECRET"]
)
def test_a_signature_is_refused_and_kept_nowhere(place: str) -> None:
    model = form()
    model.data = [row("train", place)]
    model.outputs = place
    assert "SECRET" not in json.dumps(model.shown)
    assert {one["level"] for one in (*model.data_now["sources"], model.data_now["outputs"])} == {"error"}


def test_a_launcher_takes_every_form_of_data(labels: Path) -> None:
    assert form(data={"labels": str(labels)}).data == form(data=f"labels={labels}").data == [row("labels", str(labels))]
    assert form(data=str(labels)).data == [row("data", str(labels))]
    with pytest.raises(InvalidSpec, match="data must be a dict of names and addresses, not"):
        form(data=5)


def test_a_folder_is_counted_and_the_job_reads_it(labels: Path, distdl_home: Path) -> None:
    model = form(data={"labels": str(labels)})
    assert said(model) == {
        "name": "labels", "place": str(labels), "level": "ok", "text": "2 files, 1.2 kB", "remedy": "", "code": "",
        "looking": False, "sign_in": False,
    }  # fmt: skip
    assert any(item["text"] == "labels: 2 files, 1.2 kB" for item in model.checks["items"])
    job = model.submit()
    assert job is not None, model.status
    assert job.result(120) == "seven"
    assert job.spec.data[0].path == str(labels)


def test_local_paths_begin_in_the_folder_where_the_job_works(labels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"data": [row("labels", "./labels")]}
    shown = asked("1", chosen=fields, directory=str(labels.parent), look=True)
    assert shown["data_now"]["sources"][0]["level"] == "ok"
    monkeypatch.chdir(labels)
    shown = asked("1", chosen=fields, look=True)
    assert f"points to {labels / 'labels'}, which does not exist here" in shown["data_now"]["sources"][0]["text"]


def test_what_cannot_be_used_is_said_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    assert said(form(data=str(tmp_path / "none")))["text"] == f"{tmp_path / 'none'} contains no files."
    lone = tmp_path / "lone.npz"
    lone.write_bytes(b"1234")
    assert said(form(data=f"shared:{lone}"))["text"] == "1 file, 4 B"
    assert said(form(data="shared:/nowhere/at/all"))["level"] == "error"


def test_a_file_that_may_not_be_read_is_named(labels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (labels / "gone").symlink_to(labels / "nowhere")
    assert datalook.folder(labels).text == "2 files, 1.2 kB"
    file = str(labels / "deep" / "b.txt")
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != file)  # root may read all
    found = datalook.folder(labels)
    assert (found.level, found.text) == ("error", f"{file} cannot be read: no permission.")


def test_a_cluster_that_brings_no_data_keeps_the_rows(labels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalCluster, "stages", False)
    model = form(data={"labels": str(labels)})
    assert model.data == [row("labels", str(labels))]
    assert model.data_now["reason"].startswith("Local cannot copy data to its nodes. Remove data")
    assert model.checks["level"] == "error"
    monkeypatch.setattr(LocalCluster, "mounts", True)
    model.look()
    assert (model.data_now["reason"], model.data_now["mounts"]) == ("", True)


def test_what_a_cluster_says_of_a_place_stands_below_the_rows(
    labels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    names = {
        "subscription_id": f"{7:08d}-0000-0000-0000-{7:012d}",
        "resource_group": "group",
        "workspace": "room",
        "compute": "gpu",
    }
    cluster_configs.add("rented", "azureml", names)
    model = form(data={"labels": str(labels)}, compute_target="rented")
    assert model.data_now["mounts"]
    assert model.data_now["sources"][0]["level"] == ""
    assert "blob://" in model.problems["data"]


def test_nobody_signed_in_is_a_remedy_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    found = said(form(data="blob://acct/cont/x"))
    assert (found["level"], found["sign_in"]) == ("error", True)
    assert found["text"] == "Not signed in to Azure."


def test_a_look_goes_on_by_itself_and_is_remembered() -> None:
    asked: list[float] = []

    def slowly() -> Found:
        asked.append(time.monotonic())
        time.sleep(0.3)
        return Found("ok", "found")

    key = object()
    first = datalook.at(key, slowly)
    assert first.looking
    datalook.wait([first], 60)
    assert first.found == Found("ok", "found")
    wait_for(lambda: not first.looking)
    assert datalook.at(key, slowly) is first
    again = datalook.at(key, slowly, fresh=True)
    assert again is not first
    assert (again.found, again.looking) == (first.found, True)
    wait_for(lambda: not again.looking)
    assert len(asked) == 2


@pytest.mark.parametrize("wrong", [ImportError("x", name="azure.storage"), RuntimeError("broken")])
def test_a_look_that_breaks_says_so(wrong: Exception) -> None:
    def breaking() -> Found:
        raise wrong

    look = datalook.at(object(), breaking)
    wait_for(lambda: not look.looking)
    assert look.found is not None
    assert look.found.level == "error"


def test_a_process_that_ends_promises_no_more_answers() -> None:
    now = answered_apart("1", chosen={"data": [row("x", "blob://acct/cont")]}, look=True)["data_now"]
    assert (now["looking"], now["sources"][0]["looking"]) == (False, False)
    assert now["sources"][0]["level"]


def test_a_row_means_what_core_says() -> None:
    assert datarows.place(datarows.kept([DataRow("a", "blob://acct/cont?shard", mode="mount")])[0]) == (
        "blob://acct/cont?shard&mode=mount"
    )
    assert datarows.place(datarows.kept([DataRow("a", "./x", shard=True)])[0]) == "./x"
