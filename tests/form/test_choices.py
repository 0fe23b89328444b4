"""What the form offers is what is really there, with a reason for what is not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from distdl_jupyter import add_cluster
from distdl_jupyter.azure import VmSize, load_catalogue
from distdl_jupyter.core import registry
from distdl_jupyter.form import choices as menu
from distdl_jupyter.form.schema import BackendChoice
from distdl_jupyter.form.values import split_label


def test_every_size_has_its_row_and_retired_ones_come_last_with_what_replaces_them() -> None:
    rows = menu.list_vm_sizes()
    assert {row.name for row in rows} == {size.name for size in load_catalogue()}
    retired = [bool(row.retired) for row in rows]
    assert retired == sorted(retired)
    for row in rows:
        assert bool(row.retired) is bool(row.successor)
        assert bool(row.retired) is bool(row.successor_reason)


def test_of_sizes_that_are_else_alike_the_one_with_fewer_cores_comes_first() -> None:
    alike: dict[tuple[object, ...], list[VmSize]] = {}
    sizes = {size.name: size for size in load_catalogue()}
    for row in menu.list_vm_sizes():
        size = sizes[row.name]
        unknown = size.infiniband is None and size.ethernet_gbps is None
        memory = size.gpu_count * (size.gpu_memory_gib or 0)
        alike.setdefault((size.is_retired, size.gpu_count < 1, unknown, memory), []).append(size)
    groups = [[size.vcpus or 0 for size in group] for group in alike.values()]
    assert any(len(set(group)) > 1 for group in groups)
    assert all(group == sorted(group) for group in groups)


def test_this_machine_is_named_by_its_system_and_what_users_named_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    add_cluster("mini", "local")
    offered = {choice.name: (choice.title, choice.system) for choice in menu.list_clusters()}
    assert offered["local"] == ("", "Linux" if sys.platform == "linux" else "macOS")
    assert offered["mini"] == (registry.get("clusters", "local").title, "")


def test_a_row_says_what_is_known_and_no_more() -> None:
    rows = {row.name: row for row in menu.list_vm_sizes()}
    assert rows["NC96ads_A100_v4"].rate == "80 Gb/s"
    assert rows["NC96ads_A100_v4"].network == "Ethernet"
    assert rows["NC4as_T4_v3"].network == "not stated"
    assert rows["ND96isr_H100_v5"].network == "InfiniBand"
    assert rows["NC24lds_xl_RTXPRO6000BSE_v6"].memory == "not stated"


def test_backends_are_offered_once_with_their_options() -> None:
    offered = {choice.label: choice for choice in menu.list_backends()}
    assert list(offered) == ["horovod-gloo", "horovod-mpi", "torch", "deepspeed", "tensorflow", "ray", "plain"]
    assert [option.name for option in offered["torch"].options] == ["transport"]
    assert offered["torch"].options[0].kind == "choice"
    assert "controller" not in [option.name for option in offered["horovod-mpi"].options]
    kinds = {option.name: option.kind for option in offered["horovod-gloo"].options}
    assert kinds["cycle_time_ms"] == "number"
    assert "2.13" in offered["torch"].detail or offered["torch"].detail.startswith("torch ")


def test_horovod_says_for_which_frameworks_it_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distdl_jupyter.backends.base.find_version", lambda *names: f"{names[0]}-1")
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("distdl_jupyter.backends.horovod.find_spec", lambda name: found)

    def details() -> list[str]:
        offered = {choice.label: choice.detail for choice in menu.list_backends()}
        return [offered["horovod-gloo"], offered["horovod-mpi"]]

    for name in ("torch", "tensorflow"):
        (tmp_path / name).mkdir()
    (tmp_path / "torch" / "mpi_lib_v2.cpython-311-x86_64-linux-gnu.so").touch()
    assert details() == [
        "Horovod horovod-1 for torch torch-1", "Horovod horovod-1 for torch torch-1, Open MPI openmpi-1"
    ]  # fmt: skip
    (tmp_path / "tensorflow" / "mpi_lib.cpython-311-x86_64-linux-gnu.so").touch()
    assert details()[0] == "Horovod horovod-1 for torch torch-1 and TensorFlow tensorflow-1"


def test_a_backend_that_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distdl_jupyter.backends.horovod.find_spec", lambda name: None)
    offered = {choice.label: choice.reason for choice in menu.list_backends()}
    assert "distdl install horovod" in offered["horovod-gloo"]
    assert offered["plain"] == ""


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("torch-nccl", ("torch", {"transport": "nccl"})),
        ("torch", ("torch", {})),
        ("horovod-mpi", ("horovod-mpi", {})),
        ("plain", ("plain", {})),
    ],
)
def test_a_label_is_shown_as_the_choice_that_means_it(label: str, shown: tuple[str, dict[str, str]]) -> None:
    assert split_label(label) == shown


def test_the_cluster_line_says_which_machine() -> None:
    (local,) = [cluster for cluster in menu.list_clusters() if cluster.local]
    assert local.name == "local"
    assert "core" in local.detail
    assert local.reason == ""


OFFERED = [
    BackendChoice("horovod-gloo", "horovod", "", "", ()),
    BackendChoice("horovod-mpi", "horovod", "no mpirun", "", ()),
    BackendChoice("torch", "torch", "", "", ()),
    BackendChoice("plain", "plain", "", "", ()),
]


@pytest.mark.parametrize(
    ("wanted", "count", "missing", "label"),
    [
        ("horovod", 2, (), "horovod-gloo"),
        ("horovod", 2, ("horovod-gloo",), "horovod-gloo"),
        ("torch", 1, (), "torch"),
        ("", 2, (), "torch"),
        ("", 1, (), "plain"),
        ("", 2, ("torch",), "plain"),
    ],
)
def test_the_backend_to_begin_with(wanted: str, count: int, missing: tuple[str, ...], label: str) -> None:
    offered = [replace(one, reason="missing" if one.label in missing else one.reason) for one in OFFERED]
    assert menu.guess_backend(offered, wanted, count) == label
