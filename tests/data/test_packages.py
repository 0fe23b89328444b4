"""Packages that travel: real environments made by pip from wheels that the test builds, for real jobs."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import distdl_jupyter
from distdl_jupyter.core.errors import JobFailed
from distdl_jupyter.core.events import State
from distdl_jupyter.data.packages import PackageEnvironment, PackageRequest
from distdl_jupyter.node.data_cache import Cache, StagingFailed
from tests.data.wheels import only, wheel


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def wheels(tmp_path):
    wheel(tmp_path / "wheels", "oneleaf", "1.0")
    wheel(tmp_path / "wheels", "oneleaf", "2.0")
    return wheel(tmp_path / "wheels", "onetree", "0.3", requires=["oneleaf<2"])


def seen():
    import oneleaf

    import distdl_jupyter

    return sys.executable, oneleaf.VERSION, distdl_jupyter.__file__


def submit(wheels, function=seen, **options):
    options.setdefault("distributed_backend", "plain")
    variables = {**only(wheels), **options.pop("environment_variables", {})}
    return distdl_jupyter.submit(function, environment_variables=variables, **options)


def result(job):
    view = job.wait(120).view()
    assert view.state is State.COMPLETED, f"{view.reason} {view.notes} {job.folder.supervisor_log.read_text()}"
    return job.results()


def text(job):
    return "\n".join(map(str, job.logs()))


def test_every_rank_has_the_packages_of_its_job_and_the_next_job_makes_no_environment(wheels, home):
    first = submit(wheels, pip_packages=["oneleaf==1.0"], process_count_per_node=2, distributed_backend="torch")
    (python, version, own), (other, _, _) = result(first)
    assert python == other
    assert version == "1.0"
    assert own == distdl_jupyter.__file__  # what is installed here is seen, too
    assert python.startswith(str(home / "cache"))
    assert f"Packages on {first.view().ranks[0].host}: {python}" in text(first)
    assert [(bar.source, bar.done, bar.total) for bar in first.view().staging] == [("Python packages", 1, 1)]
    assert first.environment().packages["oneleaf"] == "1.0"
    assert first.environment().executable == python
    assert "oneleaf==1.0\n" in str(first.environment())
    again = submit(wheels, pip_packages="oneleaf==1.0")
    assert result(again)[0][:2] == (python, "1.0")
    assert again.view().staging == []
    assert "Packages on" not in text(again)


@pytest.mark.full
def test_other_packages_are_another_environment(wheels, home):
    (home / "requirements.txt").write_text("onetree\n")
    two = submit(wheels, pip_packages=["oneleaf==2.0"])
    one = submit(wheels, requirements=str(home / "requirements.txt"))
    assert [result(job)[0][1] for job in (two, one)] == ["2.0", "1.0"]
    (home / "requirements.txt").unlink()
    assert result(one.rerun())[0][1] == "1.0"  # the text went with the job


def test_a_script_that_states_its_packages_has_them(wheels, home):
    script = home / "train.py"
    script.write_text(
        '# /// script\n# dependencies = ["oneleaf==2.0"]\n# ///\nimport oneleaf\nprint(oneleaf.VERSION)\n'
    )
    job = distdl_jupyter.submit(
        entry_script=str(script), distributed_backend="plain", environment_variables=only(wheels)
    )
    result(job)
    assert "2.0" in [line.text for line in job.logs(rank=0)]
    assert job.spec.requirements == "oneleaf==2.0\n"


def test_the_installers_own_words_are_the_reason(wheels):
    job = submit(wheels, pip_packages=["oneleaf==7"])
    with pytest.raises(JobFailed):
        job.wait(120).result()
    reason = job.view().reason
    assert "No matching distribution found for oneleaf==7" in reason
    assert "Correct the packages of the job." in reason


def use_oneleaf():
    import oneleaf

    return oneleaf.VERSION


@pytest.mark.full
@pytest.mark.parametrize("spoil", [Path.unlink, lambda ready: ready.parent.chmod(0o777)], ids=["incomplete", "open"])
def test_an_environment_that_is_incomplete_or_that_others_could_change_is_made_again(wheels, home, spoil):
    assert result(submit(wheels, use_oneleaf, pip_packages=["oneleaf==1.0"])) == ["1.0"]
    [ready] = (home / "cache" / "environments").glob("*/ready.json")
    for module in ready.parent.rglob("oneleaf.py"):
        module.write_text("VERSION = 'planted'\n")
    spoil(ready)
    assert result(submit(wheels, use_oneleaf, pip_packages=["oneleaf==1.0"])) == ["1.0"]
    assert json.loads(ready.read_text())["pip"] == ["oneleaf==1.0"]
    assert ready.parent.stat().st_mode & 0o022 == 0


@pytest.mark.full
def test_two_jobs_that_need_the_same_make_it_once(wheels, home):
    with ThreadPoolExecutor(2) as pool:
        jobs = list(pool.map(lambda _: submit(wheels, use_oneleaf, pip_packages=["oneleaf==1.0"]), range(2)))
    assert [result(job) for job in jobs] == [["1.0"], ["1.0"]]
    assert len(list((home / "cache" / "environments").glob("*/ready.json"))) == 1


def test_a_password_for_the_index_stands_nowhere(wheels, home):
    secret = "hunter22hunter22"
    variables = {"PIP_EXTRA_INDEX_URL": f"https://me:{secret}@127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    job = submit(wheels, use_oneleaf, pip_packages=["nowhere"], environment_variables=variables)
    view = job.wait(120).view()
    assert view.state is State.FAILED
    assert "nowhere" in view.reason
    for path in home.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


@pytest.mark.filterwarnings("ignore:Setuptools is replacing distutils")  # pip is looked for beside other tests' imports
def test_a_module_that_no_package_brings_is_missed_before_the_ranks_start(wheels, home):
    asked = PackageRequest(pip=("oneleaf==1.0",), modules=("oneleaf", "nowhere.at_all"), variables=only(wheels))
    with pytest.raises(StagingFailed, match="nowhere is neither in the job's packages nor installed") as caught:
        PackageEnvironment(asked, Cache(str(home / "cache")), lambda *_: None).make()
    assert caught.value.remedy.startswith("Add nowhere to pip_packages")


def test_the_record_of_a_job_holds_the_state_of_its_code_without_secrets(home, monkeypatch):
    git = ["git", "-C", home, "-c", "user.name=A", "-c", "user.email=a@example.org"]
    (home / "train.py").write_text("RATE = 0.1\n")
    for words in (["init", "-q", "-b", "main"], ["add", "train.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    token = "ghp_" + "a1B2" * 9
    (home / "train.py").write_text(f"RATE = 0.2\nTOKEN = '{token}'\n")
    monkeypatch.chdir(home)
    job = distdl_jupyter.submit(os.getpid, distributed_backend="plain").wait(120)
    record = job.environment()
    assert record.packages["pytest"] == pytest.__version__
    assert "+RATE = 0.2" in record.git.diff
    assert token not in record.git.diff
    assert str(record.git) == f"main {record.git.commit[:10]}, with changes"
    assert Path(job.folder.environment_file).stat().st_mode & 0o077 == 0
