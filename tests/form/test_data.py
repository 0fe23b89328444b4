"""The form's rows of data: typed, refused, written into the line and read back, and read by a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.clusters.local import LocalCluster
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.form.schema import DataRow
from distdl_jupyter.form.values import list_addresses
from tests.form.page import Page, asked

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
    return {"name": name, "address": place, "shard": False, "mode": "download", **more}


def form(**given: Any) -> Page:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(TRAIN, names)
    return Page(names["train"], process_count_per_node=1, distributed_backend="plain", name="n", **given)


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
    again = asked("1", values={name: shown[name] for name in ("data", "outputs")})
    assert again["options"]["data"] == shown["options"]["data"]
    assert again["options"]["outputs"] == "blob://acct/results"


def test_what_cannot_be_read_stays_in_its_row_and_out_of_the_line() -> None:
    typed = [row("train", "blob://Acct/cont"), row("my data", "./x"), row("", ""), row("empty", "")]
    shown = asked("1", values={"data": typed, "outputs": "./out", "name": "n"})
    assert shown["data"] == typed
    assert shown["problems"]["data"].startswith("'Acct' is not a valid storage account name.")
    assert "blob://account/container/prefix" in shown["problems"]["outputs"]
    assert shown["checks"]["errors"] == 2
    assert "--data" not in shown["magic"]
    assert "--outputs" not in shown["magic"]
    begun = asked("%%distributed --data train=blob://Acct/cont\n1")
    assert begun["data"] == [row("train", "blob://Acct/cont")]


@pytest.mark.parametrize(
    "place", ["blob://acct/c?sv=1&sig=abcSECRET", "https://a.blob.core.windows.net/c?sig=abcSECRET"]
)
def test_a_signature_is_refused_and_kept_nowhere(place: str) -> None:
    model = form()
    model.data = [row("train", place)]
    model.outputs = place
    assert "SECRET" not in json.dumps(model.shown)
    assert {"data", "outputs"} <= model.problems.keys()


def test_a_launcher_takes_every_form_of_data(labels: Path) -> None:
    assert form(data={"labels": str(labels)}).data == form(data=f"labels={labels}").data == [row("labels", str(labels))]
    assert form(data=str(labels)).data == [row("data", str(labels))]
    with pytest.raises(InvalidSpec, match="data must be a dict of names and addresses, not"):
        form(data=5)


def test_the_job_reads_the_folder_of_a_row(labels: Path, distdl_home: Path) -> None:
    model = form(data={"labels": str(labels)})
    assert any(item["name"] == "Data" and item["level"] == "ok" for item in model.checks["items"])
    job = model.submit()
    assert job is not None, model.status
    assert job.result(120) == "seven"
    assert job.spec.data[0].path == str(labels)


@pytest.mark.parametrize(
    "rows",
    [
        [row("labels", "./labels"), row("LABELS", "./labels")],
        [row("my data", "./labels")],
        [row("empty", "")],
        [row("labels", "./nowhere")],
        [row("labels", "blob://acct/cont?mode=mount")],
    ],
)
def test_an_address_that_cannot_be_used_is_refused_before_the_start(labels: Path, rows: list[dict[str, Any]]) -> None:
    shown = asked("1", values={"data": rows}, directory=str(labels.parent))
    assert shown["checks"]["level"] == "error"
    assert shown["problems"]["data"]


def test_local_paths_begin_in_the_folder_where_the_job_works(labels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"data": [row("labels", "./labels")]}
    assert "data" not in asked("1", values=fields, directory=str(labels.parent))["problems"]
    monkeypatch.chdir(labels)
    shown = asked("1", values=fields)
    assert f"points to {labels / 'labels'}, which does not exist here" in shown["problems"]["data"]


def test_a_cluster_that_brings_no_data_keeps_the_rows(labels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalCluster, "has_agents", False)
    model = form(data={"labels": str(labels)})
    assert model.data == [row("labels", str(labels))]
    assert model.problems["data"].startswith("Local cannot copy data to its nodes. Remove data")
    assert model.checks["level"] == "error"
    monkeypatch.setattr(LocalCluster, "can_mount", True)
    model.look()
    assert ("data" in model.problems, model.mounts) == (False, True)


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
    assert model.mounts
    assert "blob://" in model.problems["data"]


def test_a_row_means_what_core_says() -> None:
    rows = [DataRow("a", "blob://acct/cont?shard", mode="mount"), DataRow("", " "), DataRow("", "./x", shard=True)]
    assert list(list_addresses(rows)) == [("a", "blob://acct/cont?shard&mode=mount"), ("data", "./x")]
