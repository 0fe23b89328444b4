"""Which GPUs ranks may use is what nvidia-smi says, where it works."""

import os

import pytest

from distdl_jupyter.clusters import gpus


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Return ``nvidia_smi(script)``, which puts a program of that name in front of all others."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(script):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        gpus.visible.cache_clear()
        gpus.name.cache_clear()

    yield install
    gpus.visible.cache_clear()
    gpus.name.cache_clear()


TWO = 'case "$1" in *name) printf "0, NVIDIA A100\\n1, NVIDIA H100\\n";; *) printf "0\\n1\\n";; esac'


@pytest.mark.parametrize(
    ("chosen", "indices", "name"),
    [(None, [0, 1], "NVIDIA A100"), ("1", [1], "NVIDIA H100"), ("1,7", [1], "NVIDIA H100"), ("", [], "")],
)
def test_what_is_there_is_limited_by_the_variable(nvidia_smi, monkeypatch, chosen, indices, name):
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    nvidia_smi(TWO)
    assert gpus.visible() == indices
    assert gpus.name() == name


def test_a_program_that_fails_has_no_gpus_whatever_it_prints(nvidia_smi):
    nvidia_smi("echo 0; exit 9")
    assert gpus.visible() == []
    assert gpus.name() == ""
