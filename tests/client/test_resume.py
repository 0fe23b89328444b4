"""What a resumed job keeps of the earlier one, and what the caller may change."""

import sys

import pytest

from distdl_jupyter import submit
from distdl_jupyter.backends.torch import TorchBackend
from distdl_jupyter.core.errors import InvalidSpec, PluginUnavailable

pytestmark = pytest.mark.timeout(200)


def counts(word):
    import os

    import distdl_jupyter

    path = distdl_jupyter.checkpoint_dir() / f"{os.environ['DISTDL_RANK']}.txt"
    path.write_text((path.read_text() if path.exists() else "") + word)
    names = ("API_TOKEN", "PLAIN", "DISTDL_WORLD_SIZE")
    return path.read_text(), [os.environ.get(name) for name in names]


@pytest.fixture
def job():
    variables = {"API_TOKEN": "s3cret-word", "PLAIN": "first"}
    job = submit(counts, ["x"], environment_variables=variables, stop_grace_seconds=1.5,
                 distributed_backend="plain", name="earlier").wait(60)  # fmt: skip
    assert job.result() == ("x", ["s3cret-word", "first", "1"])
    return job


def test_secrets_come_from_the_current_environment(job, monkeypatch):
    with pytest.raises(InvalidSpec, match="API_TOKEN was set for job"):
        job.resume()
    given = job.resume(env={"API_TOKEN": "other-word"}).wait(60)
    assert given.result() == ("xx", ["other-word", "first", "1"])
    assert "other-word" not in given.folder.spec_file.read_text()
    monkeypatch.setenv("API_TOKEN", "third-word")
    assert job.resume().result(60) == ("xx", ["third-word", "first", "1"])


def test_new_options_replace_old_ones_and_all_others_stay(job, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "s3cret-word")
    new = job.resume(np=2, backend="torch-gloo", environment_variables={"PLAIN": "second"}, max_restarts=3).wait(120)
    assert [value[1] for value in new.results()] == [["s3cret-word", "second", "2"]] * 2
    assert [value[0] for value in new.results()] == ["xx", "x"]
    spec = new.spec
    assert (spec.name, spec.stop_grace_seconds, spec.max_restarts, spec.resumed_from) == ("earlier", 1.5, 3, job.id)
    assert spec.secret_variables == ("API_TOKEN",)
    # A chain of jobs, each from the last one's checkpoints.
    last = new.resume().wait(120)
    assert [value[0] for value in last.results()] == ["xxx", "xx"]
    assert last.spec.resumed_from == new.id
    again = last.rerun().wait(120)
    assert [value[0] for value in again.results()] == ["x", "x"]


def test_the_jobs_own_python_decides_which_backends_exist(job, monkeypatch, tmp_path):
    monkeypatch.setenv("API_TOKEN", "s3cret-word")
    monkeypatch.setattr(TorchBackend, "unavailable", lambda *_: "PyTorch is not installed here.")
    with pytest.raises(PluginUnavailable, match="PyTorch is not installed here"):
        job.resume(np=2, backend="torch-gloo")
    own = sys.executable
    monkeypatch.setattr(sys, "executable", str(tmp_path / "server-python"))
    new = job.resume(np=2, backend="torch-gloo").wait(120)
    assert new.results()[0][0] == "xx"
    assert new.spec.python == own


def test_outside_of_a_job_checkpoints_go_beside_the_notebook(tmp_path, monkeypatch):
    from distdl_jupyter import checkpoint_dir

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISTDL_JOB_DIR", raising=False)
    assert checkpoint_dir() == tmp_path / "checkpoints"
    assert checkpoint_dir().is_dir()
