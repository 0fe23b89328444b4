"""When a job starts cold, and that a warm job sees only its own settings."""

import os
import subprocess
import sys
import textwrap

import pytest

from distdl_jupyter import submit
from distdl_jupyter.warm import preload
from distdl_jupyter.warm import start as warm_start
from tests.conftest import wait_for
from tests.starting import revive
from tests.warm.conftest import assert_warm, cold_reason, is_warm

pytestmark = pytest.mark.timeout(300)


def threads():
    import numpy as np  # noqa: F401
    import torch
    from threadpoolctl import threadpool_info

    blas = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return torch.get_num_threads(), blas, os.environ["OMP_NUM_THREADS"]


def dice():
    import multiprocessing
    import random
    import uuid

    import numpy as np
    import torch

    own = random.random(), np.random.rand(), np.random.default_rng().random(), torch.rand(1).item()
    return *own, uuid.uuid4().hex, bytes(multiprocessing.current_process().authkey).hex()


def test_all_ranks_throw_different_dice(distdl_home):
    options = {"distributed_backend": "torch", "process_count_per_node": 2}
    jobs = [submit(dice, **options) for _ in range(2)]
    thrown = [value for job in jobs for value in job.results(timeout=120)]
    assert_warm(*jobs)
    for column in zip(*thrown, strict=True):
        assert len(set(column)) == 4


def value_of(name):
    return os.environ.get(name)


def test_other_variables_are_the_jobs_own(distdl_home, monkeypatch):
    for value in ("one", "two"):
        monkeypatch.setenv("OF_MY_OWN", value)
        job = submit(value_of, ("OF_MY_OWN",), distributed_backend="plain", environment_variables={"MORE": "x"})
        assert job.result(timeout=120) == value
        assert_warm(job)
    monkeypatch.delenv("OF_MY_OWN")
    job = submit(value_of, ("OF_MY_OWN",), distributed_backend="plain")
    assert job.result(timeout=120) is None
    assert_warm(job)


def test_a_variable_of_one_job_harms_no_other(distdl_home):
    """NumPy reads it when it is imported, so this one job starts cold; the template stays for all others."""
    name = "NUMPY_MADVISE_HUGEPAGE"
    job = submit(value_of, (name,), distributed_backend="plain", environment_variables={name: "1"})
    assert job.result(timeout=120) == "1"
    assert f"the value of the environment variable {name} differs" in cold_reason(job)
    other = submit(value_of, (name,), distributed_backend="plain")
    assert other.result(timeout=120) == os.environ.get(name)
    assert_warm(other)


def surroundings():
    return os.environ["TERM"], os.environ["PATH"].split(os.pathsep)[-1], os.getpriority(os.PRIO_PROCESS, 0)


def test_terminal_path_and_priority_are_the_jobs_own(distdl_home):
    """The submitter has another terminal, another PATH and a lower priority than the template."""
    code = textwrap.dedent("""
        from distdl_jupyter import submit
        from tests.warm.test_preconditions import surroundings
        from tests.warm.conftest import assert_warm
        from distdl_jupyter.warm import start as warm_start

        warm_start._TIMEOUT_SECONDS = 30.0
        job = submit(surroundings, distributed_backend="plain")
        print(*job.result(timeout=120))
        assert_warm(job)
    """)
    own = {"TERM": "xterm-256color", "COLUMNS": "33", "PATH": f"{os.environ['PATH']}:/opt/my/tools"}
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    ran = subprocess.run(["nice", "-n", "5", sys.executable, "-c", code], env=os.environ | own, capture_output=True,
                         text=True, timeout=200)  # fmt: skip
    assert ran.stdout.split() == ["xterm-256color", "/opt/my/tools", str(niceness + 5)], ran.stderr


@pytest.mark.full
def test_a_template_of_lower_priority_is_replaced(own_home):
    start = "from distdl_jupyter import cli; cli.main(['warm', 'start'])"
    subprocess.run(["nice", "-n", "5", sys.executable, "-c", start], check=True, timeout=200)
    job = submit(abs, (-1,), distributed_backend="plain")
    assert job.result(timeout=120) == 1
    assert "the template has a lower priority (nice)" in cold_reason(job)
    assert revive()
    again = submit(abs, (-1,), distributed_backend="plain")
    assert again.result(timeout=120) == 1
    assert_warm(again)


def test_another_limit_starts_cold(distdl_home):
    """In a process of its own, because a lower limit is for ever."""
    code = textwrap.dedent("""
        import resource
        from distdl_jupyter import submit
        resource.setrlimit(resource.RLIMIT_CORE, (0, 4096))
        job = submit(abs, (-1,), distributed_backend="plain")
        assert job.result(timeout=120) == 1
        print([n["text"] for n in job.view().notes if n.get("code") == "cold-start"])
    """)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    warm_start.stop(warm_start.get_template_files())  # the other tests' limits are not these
    assert "the job and the template differ in the limits (ulimit)" in said.stdout, said.stderr


def use_train(folder):
    sys.path.insert(0, folder)
    import my_training

    return my_training.VALUE


def test_a_changed_module_of_the_users_is_seen(distdl_home, tmp_path):
    for value in (1, 2):
        (tmp_path / "my_training.py").write_text(f"VALUE = {value}\n#{'x' * value}")
        job = submit(use_train, (str(tmp_path),), distributed_backend="plain")
        assert job.result(timeout=120) == value
        assert_warm(job)
    revive()
    assert "my_training" not in preload.ImportHistory(warm_start.get_template_files().history).list_names()


@pytest.fixture
def environment(tmp_path):
    """A virtual environment that sees this one's packages and may get its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    own = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True
    )
    here = subprocess.run([sys.executable, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True,
                          text=True)  # fmt: skip
    import distdl_jupyter

    source = os.path.dirname(os.path.dirname(distdl_jupyter.__file__))
    with open(os.path.join(own.stdout.strip(), "of_the_other.pth"), "w") as file:
        file.write(f"{here.stdout.strip()}\n{source}\n")
    return python


@pytest.mark.full
def test_a_module_that_starts_a_thread_is_left_out(own_home, environment, tmp_path):
    site = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    restless = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    (site / "restless").mkdir()
    (site / "restless" / "__init__.py").write_text(restless)
    for name in ("first", "second"):
        (site / "restless" / f"{name}.py").touch()
    (site / "curious.py").write_text("import os\nALL = dict(os.environ)\n")
    (site / "ranked.py").write_text("import os\nRANK = int(os.environ.get('LOCAL_RANK', '0'))\n")
    (site / "tools.py").write_text("import shutil\nCOMPILER = shutil.which('nvcc')\n")
    (site / "trains.py").write_text("import ranked, tools\n")
    (site / "library").mkdir()
    (site / "library" / "__init__.py").write_text("import json\nfrom library import core\n")
    (site / "library" / "core.py").write_text("import curious\n")
    for number in range(30):
        (site / "library" / f"part{number}.py").touch()
    parts = [f"library.part{number}" for number in range(30)]
    where = warm_start.get_template_files(str(environment))
    preload.ImportHistory(where.history).add(
        ["restless.first", "restless.second", "restless", *parts, "trains", "curious", "json", "not_there"]
    )
    try:
        warm_start.start_template(where)
        assert warm_start.wait_until_ready(where)
        unforkable = preload.ImportHistory(where.history).unforkable
        assert set(unforkable) == {"restless", "library", "library.core", "curious", "trains", "ranked", "tools"}
        assert where.log.read_text().count("so it will not be preloaded again") == 3, (
            "each is found once, with all that import it"
        )
        assert unforkable["trains"] == "reads LOCAL_RANK when imported (in ranked)"
        assert "starts a thread" in unforkable["restless"]
        assert "whole environment" in unforkable["curious"]
    finally:
        warm_start.stop(where)


def imports_torchmetrics():
    import torchmetrics

    return torchmetrics.__name__


@pytest.mark.full
def test_a_job_whose_modules_read_its_rank_leaves_later_jobs_warm(own_home):
    options = {"distributed_backend": "torch", "process_count_per_node": 2}
    assert submit(imports_torchmetrics, **options).results(timeout=120) == ["torchmetrics"] * 2
    learned = warm_start.get_template_files().history
    wait_for(lambda: preload.ImportHistory(learned).is_unforkable("torchmetrics"), what="the learning")
    revive()
    for code in (threads, imports_torchmetrics):
        job = submit(code, **options)
        job.results(timeout=120)
        assert_warm(job)


def test_ranks_started_by_mpirun_start_cold(distdl_home):
    job = submit(abs, (-3,), distributed_backend="horovod-mpi")
    assert job.result(timeout=120) == 3
    assert not is_warm(job)
    assert cold_reason(job) == "This job starts cold because mpirun starts them."


def compiles():
    """Train a step of a compiled model; return whether the compiler was loaded before."""
    import sys

    was_loaded = "torch._inductor.compile_fx" in sys.modules
    import torch

    net = torch.compile(torch.nn.Linear(3, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return was_loaded


@pytest.mark.full
@pytest.mark.timeout(600)
def test_compiler_is_loaded_when_a_second_compiled_job_starts(own_home, monkeypatch, tmp_path):
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))
    options = {"distributed_backend": "torch", "process_count_per_node": 1}
    assert submit(compiles, **options).result(timeout=250) is False
    files = warm_start.get_template_files()
    learned = preload.ImportHistory
    wait_for(
        lambda: "torch._inductor.compile_fx" in learned(files.history).list_names(), 100, "the end of the first job"
    )
    wait_for(lambda: (found := warm_start.get_status(files)) and not found["learning"], 100, "the imports")
    second = submit(compiles, **options)
    assert second.result(timeout=250) is True
    assert_warm(second)
