"""What the form finds in Azure Blob before the start, with Azurite and an app that is signed in."""

from __future__ import annotations

import shutil
from typing import Any, NamedTuple

import pytest

from distdl_jupyter.form import datalook
from tests.azurite.fixtures import azurite  # noqa: F401
from tests.form.page import Page
from tests.form.test_data import form, row, said


@pytest.fixture
def container(signed_in: Any, azurite: Any) -> Any:  # noqa: F811
    signed_in.blob_at(azurite.template)
    made = azurite.container()
    for number in range(4):
        made.put(f"cifar/part-{number}", b"x" * 1000)
    return made


def target(model: Page) -> dict[str, Any]:
    said_of_outputs: dict[str, Any] = model.data_now["outputs"]
    return said_of_outputs


def test_files_and_bytes_are_told_and_a_nodes_part(container: Any) -> None:
    assert said(form(data=container.place("cifar")))["text"] == "4 files, 4.0 kB"
    model = form(data=container.place("cifar") + "?shard", node_count=2)
    assert said(model)["text"] == "4 files, 4.0 kB; a node stores at most 2.0 kB"


def test_what_is_not_there_stands_beside_its_row_and_is_asked_again(container: Any) -> None:
    model = form(data=container.place("nothing"), outputs="blob://devstoreaccount1/missing")
    found = said(model)
    assert (found["level"], found["sign_in"]) == ("error", False)
    assert "contains no files" in found["text"]
    assert "The container does not exist" in target(model)["text"]
    assert model.checks["errors"] == 2
    container.put("nothing/a", b"1")
    model.outputs = container.place("results")
    model.refresh()
    assert said(model)["text"] == "1 file, 1 B"
    assert target(model)["text"] == "The container exists"


class Usage(NamedTuple):
    free: int


def test_a_disk_that_is_too_small_is_told_before_the_start(container: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2500))
    found = said(form(data=container.place("cifar/")))
    assert found["level"] == "warning"
    assert "has 2.5 kB free" in found["text"]
    assert "DISTDL_CACHE" in found["remedy"]
    assert said(form(data=container.place("cifar/") + "?shard", node_count=2))["level"] == "ok"


def test_a_key_in_the_environment_is_used_with_a_warning(container: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from distdl_jupyter.azure import settings

    settings.change(credential="")
    monkeypatch.setenv(
        "AZURE_STORAGE_KEY", "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    )
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "devstoreaccount1")
    model = form()
    model.data = [row("train", container.place("cifar"))]
    model.refresh()
    found = said(model)
    assert found["level"] == "warning"
    assert "AZURE_STORAGE_KEY" in found["remedy"]
    assert datalook.Found("ok", "x").remedy == ""
