"""Clusters with names of a user's own: kept privately, checked, resolved in a job's spec."""

import json
import multiprocessing
import stat

import pytest

from distdl_jupyter import submit
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core.errors import ClusterNotFound, ClusterRefused, DistDLError, InvalidSpec


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "config"


def test_a_name_is_kept_found_changed_and_forgotten(rack, config):
    cluster_configs.add("mini", "rack", {"machines": 3})
    found = cluster_configs.find("mini")
    assert (found.kind, found.options, found.named) == ("rack", {"machines": 3}, True)
    assert cluster_configs.list_names() == ["azureml", "local", "rack", "ray", "slurm", "spark", "ssh", "mini"]
    cluster_configs.change("mini", {"machines": 4})
    assert cluster_configs.find("mini").options == {"machines": 4}
    cluster_configs.remove("mini")
    assert cluster_configs.list_named() == []
    with pytest.raises(ClusterNotFound):
        cluster_configs.remove("mini")
    with pytest.raises(
        InvalidSpec, match=r"Unknown cluster 'mini'\. .*Use one of: azureml, local, rack, ray, slurm, spark, ssh\."
    ):
        cluster_configs.find("mini")


def test_the_file_is_the_owners_alone_and_holds_what_was_said(rack, config):
    cluster_configs.add("mini", "rack", {"machines": 3})
    file = config / "distdl_jupyter.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text()) == {
        "version": 1,
        "clusters": {"mini": {"kind": "rack", "options": {"machines": 3}}},
    }
    assert [one.name for one in config.iterdir()] == ["distdl_jupyter.json"]


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", "-x", "x" * 41, "ü", "a\n"])
def test_a_name_is_a_plain_word(name):
    with pytest.raises(InvalidSpec, match="is not a valid cluster name"):
        cluster_configs.add(name, "local", {})


def test_what_is_wrong_is_refused_before_it_is_kept(rack, config):
    with pytest.raises(InvalidSpec, match="rack is a cluster type"):
        cluster_configs.add("rack", "rack", {})
    with pytest.raises(InvalidSpec, match="Unknown cluster type 'rak'"):
        cluster_configs.add("mini", "rak", {})
    with pytest.raises(InvalidSpec, match="Unknown option 'wheels' of the cluster rack"):
        cluster_configs.add("mini", "rack", {"wheels": 4})
    with pytest.raises(InvalidSpec, match="password looks like a secret"):
        cluster_configs.add("mini", "rack", {"password": "hunter2"})
    for kind, name, value in (("slurm", "setup", "export HF_TOKEN=hunter2hunter2hunter2"),
                              ("spark", "remote", "sc://host:15002/;x-api-key=hunter2hunter2")):  # fmt: skip
        with pytest.raises(InvalidSpec, match=f"{name} contains a secret .*=•••") as refused:
            cluster_configs.add("mini", kind, {name: value})
        assert "hunter2" not in str(refused.value)
        with pytest.raises(InvalidSpec, match=f"{name} contains a secret|not on the PATH|not installed") as refused:
            submit(print, compute_target=kind, **{name: value})
        assert "hunter2" not in str(refused.value)
    cluster_configs.add("mini", "slurm", {"setup": "module load cuda/12.4; export HF_TOKEN=$(cat ~/.hf)"})
    cluster_configs.remove("mini")
    cluster_configs.add("mini", "rack", {})
    with pytest.raises(ClusterRefused, match="Cluster mini already exists"):
        cluster_configs.add("mini", "rack", {})
    assert "hunter2" not in (config / "distdl_jupyter.json").read_text()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"clusters": {"a": 1}}', '{"clusters": {"a": {"kind": "x"}}}'])
def test_a_broken_file_is_named_and_never_overwritten(config, text):
    config.mkdir()
    (config / "distdl_jupyter.json").write_text(text)
    with pytest.raises(DistDLError, match=r"distdl_jupyter\.json cannot be read") as caught:
        cluster_configs.list_named()
    assert caught.value.hint == "Fix or delete that file."
    with pytest.raises(DistDLError):
        cluster_configs.add("mini", "local", {})
    assert (config / "distdl_jupyter.json").read_text() == text
    assert cluster_configs.find("local").kind == "local"


def _add(number):
    cluster_configs.add(f"mini-{number}", "local", {})


def test_processes_that_add_at_once_lose_nothing():
    with multiprocessing.get_context("fork").Pool(8) as pool:
        pool.map(_add, range(40))
    assert len(cluster_configs.list_named()) == 40


def test_a_job_knows_the_name_and_what_it_stood_for(rack):
    cluster_configs.add("mini", "rack", {"machines": 3})
    job = submit(sum, ([1, 2],), compute_target="mini", fast=True)
    assert job.result(120) == 3
    assert (job.spec.compute_target, job.spec.cluster) == ("mini", "rack")
    assert job.spec.cluster_options == {"machines": 3, "fast": True}
    cluster_configs.remove("mini")
    assert job.rerun().result(120) == 3
