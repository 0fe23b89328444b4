"""Packages by uv and by a program of conda's kind: real installers make the environments of real jobs."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from uv import find_uv_bin

import distdl_jupyter
from distdl_jupyter.core.events import State
from tests.data import conda
from tests.data.wheels import only, wheel

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def without_pip(folder):
    """Return a Python that has uv and all packages of this one but pip."""
    venv.create(folder, with_pip=False)
    here = Path(json.__file__).parents[1].name
    packages = folder / "lib" / here / "site-packages"
    for entry in next(Path(path) for path in sys.path if path.endswith("site-packages")).iterdir():
        if entry.name.partition("-")[0] != "pip":
            (packages / entry.name).symlink_to(entry)
    (folder / "bin" / "uv").symlink_to(find_uv_bin())
    return folder / "bin" / "python"


def test_uv_installs_where_there_is_no_pip(home):
    python = without_pip(home / "without")
    assert subprocess.run([python, "-m", "pip"], capture_output=True).returncode
    folder = wheel(home / "wheels", "oneleaf", "1.0")
    wheel(folder, "onetree", "0.3", requires=["oneleaf"])
    program = (
        "import distdl_jupyter, json, sys\n"
        "def seen():\n    import oneleaf, onetree\n    return sys.executable, oneleaf.VERSION, onetree.VERSION\n"
        "variables, name = json.loads(sys.argv[1]), sys.argv[2]\n"
        "job = distdl_jupyter.submit(seen, pip_packages=[name], environment_variables=variables,\n"
        "                            distributed_backend='plain').wait(120)\n"
        "view = job.view()\n"
        "print(json.dumps([view.reason, job.results() if not view.reason else None, job.environment().packages]))\n"
    )

    def run(name):
        words = [python, "-c", program, json.dumps(only(folder)), name]
        done = subprocess.run(words, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    reason, found, packages = run("onetree==0.3")
    assert reason == ""
    assert found[0][0].startswith(str(home / "cache"))
    assert found[0][1:] == ["1.0", "0.3"]
    assert packages["oneleaf"] == "1.0"
    reason, _, _ = run("onetree==7")
    assert "there is no version of onetree==7" in reason


def seen():
    import oneleaf
    import onetree

    return sys.executable, sys.prefix, oneleaf.VERSION, onetree.VERSION, distdl_jupyter.__file__


def test_conda_makes_an_environment_from_the_channels_that_are_named(home, monkeypatch):
    main, other = conda.Channel(home / "main"), conda.Channel(home / "other")
    main.add_python()
    main.add_module("oneleaf", "1.0", depends=[])
    main.add_module("oneleaf", "2.0", depends=[])
    other.add_module("onetree", "0.3", depends=["oneleaf <2"])
    monkeypatch.setenv("PATH", conda.program(home / "bin") + os.pathsep + os.environ["PATH"])
    variables = {"CONDA_CHANNELS": main.url, "CONDA_ADD_PIP_AS_PYTHON_DEPENDENCY": "false",
                 "CONDA_SOLVER": os.environ.get("CONDA_SOLVER", "")}  # fmt: skip
    variables |= only(wheel(home / "wheels", "onebush"))

    def submit(*packages, function=seen, **more):
        return distdl_jupyter.submit(function, conda_packages=list(packages), environment_variables=variables,
                                     distributed_backend="plain", **more).wait(200)  # fmt: skip

    job = submit(f"{other.url}::onetree", process_count_per_node=1, pip_packages=["onebush"])
    assert job.view().state is State.COMPLETED, f"{job.view().reason} {job.folder.supervisor_log.read_text()}"
    [(python, prefix, leaf, tree, own)] = job.results()
    assert python.startswith(str(home / "cache"))
    assert (Path(prefix) / "conda-meta").is_dir()
    assert (leaf, tree, own) == ("1.0", "0.3", distdl_jupyter.__file__)
    assert list((Path(prefix) / "lib").rglob("onebush.py"))
    [bar] = job.view().staging
    assert (bar.source, bar.done, bar.total) == ("Python packages", 1, 1)
    failed = submit("oneleaf=7")
    assert failed.view().state is State.FAILED
    assert "conda exited with code 1: " in failed.view().reason
    assert "oneleaf" in failed.view().reason
    assert "Correct the packages of the job." in failed.view().reason
