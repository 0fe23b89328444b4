"""``distdl vm-sizes`` lists the catalogue and filters it."""

from __future__ import annotations

import json

import pytest

from distdl_jupyter.cli import main


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch, azure_settings):
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))


def said(capsys, *words):
    assert main(["vm-sizes", *words]) == 0
    return capsys.readouterr().out


def test_the_catalogue_is_listed_without_asking_anybody(capsys):
    out = said(capsys)
    assert "ND96isr_H100_v5" in out
    assert "NC24rs_v3" not in out
    assert "Catalog: Microsoft documentation, 2026-09-24." in out
    assert "PRICE" not in out


def test_filters_choose_and_retired_sizes_come_when_asked_for(capsys):
    assert {line.split()[0] for line in said(capsys, "T4").splitlines()[1:-1]} == {
        "NC4as_T4_v3", "NC8as_T4_v3", "NC16as_T4_v3", "NC64as_T4_v3",
    }  # fmt: skip
    assert "retired 2025-09-30" in said(capsys, "V100", "--retired", "--infiniband")
    both = json.loads(said(capsys, "--min-gpu-memory", "100", "--min-gpus", "8", "--json"))
    assert {size["gpu_count"] for size in both} == {8.0}
    assert said(capsys, "nothing").startswith("0 sizes.")
