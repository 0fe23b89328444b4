"""Installing Horovod: kept when it fits, taken from the cache in another environment, never built twice."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from distdl_jupyter.environment.build import WheelCache
from distdl_jupyter.environment.horovod import build_key, install
from distdl_jupyter.environment.inspection import Inspection, inspect_environment
from distdl_jupyter.environment.toolchain import find_mpi

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.full
def test_a_second_install_is_quick_and_says_so() -> None:
    said: list[str] = []
    installed = install(said.append)
    assert installed.how == "kept"
    assert installed.controllers == ("gloo", "mpi")
    assert "already installed and works" in str(installed)
    assert said == ["checking torch and Horovod"]


def test_the_key_follows_torch_and_mpi() -> None:
    seen = Inspection(torch_version="2.13.0+cpu")
    mpi = find_mpi()
    key = build_key(seen, mpi)
    assert mpi is not None
    assert key.mpi == mpi.label
    assert build_key(seen, None) == dataclasses.replace(key, mpi="no-mpi")
    assert build_key(Inspection(torch_version="2.14.0"), mpi).slug != key.slug


@pytest.fixture(scope="module")
def cached_wheel() -> Path:
    """The wheel for this environment in the user's cache; built now if somebody emptied the cache."""
    key = build_key(inspect_environment(), find_mpi())
    if WheelCache().find(key) is None:
        install(force=True)
    wheel = WheelCache().find(key)
    assert wheel is not None
    return wheel


@pytest.fixture
def other_environment(tmp_path: Path) -> Path:
    """A virtual environment elsewhere with everything that this one has, except Horovod."""
    folder = tmp_path / "other"
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    borrow(Path(sysconfig.get_path("purelib")), site)
    borrow(Path(sys.prefix) / "bin", folder / "bin")
    borrow(Path(sys.prefix) / "lib", folder / "lib")
    return folder


def borrow(source: Path, target: Path) -> None:
    for entry in source.iterdir():
        if "horovod" not in entry.name and not (target / entry.name).exists():
            (target / entry.name).symlink_to(entry)


def run(python: Path, *arguments: str, timeout: float = 250) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_another_environment_takes_the_wheel_built_earlier(cached_wheel: Path, other_environment: Path) -> None:
    before = cached_wheel.stat().st_mtime_ns
    python = other_environment / "bin" / "python"
    assert "No module named 'horovod'" in run(python, "-c", "import horovod").stderr
    done = run(python, "-m", "distdl_jupyter.environment.horovod")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"Horovod 0\.28\.1 for torch with Gloo and MPI was installed from a wheel built earlier \(.*\)\.\n",
        done.stdout,
    )
    assert "compiling" not in done.stderr
    assert cached_wheel.stat().st_mtime_ns == before
    where = run(python, "-c", "import horovod.torch as hvd; print(hvd.__file__, hvd.gloo_built(), hvd.mpi_built())")
    assert where.stdout.startswith(str(other_environment)), where.stderr
    assert where.stdout.endswith("True True\n")
    again = run(python, "-m", "distdl_jupyter.environment.horovod")
    assert "is already installed and works" in again.stdout


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_the_built_library_looks_nowhere_in_the_environment_that_built_it(
    cached_wheel: Path, tmp_path: Path, dynamic_section: Callable[[Path], str]
) -> None:
    with zipfile.ZipFile(cached_wheel) as archive:
        name = next(name for name in archive.namelist() if "/mpi_lib_v2." in name)
        dynamic = dynamic_section(Path(archive.extract(name, tmp_path)))
    assert "/../../../.." in dynamic
    assert sys.prefix not in dynamic


KERAS = """
import os
import sys
sys.path.insert(0, {repository!r})
from tests.compat import test_horovod_keras as tests
(alone,) = tests.train(1, backend="tensorflow", begin=tests.BEGIN)
for controller in ("horovod-gloo", "horovod-mpi"):
    first, second = tests.train(2, backend="tensorflow", begin=tests.BEGIN, controller=controller)
    assert first["backend"] == "tensorflow"
    assert first["weights"] == second["weights"]
    tests.close(first["weights"], alone["weights"])
print("same weights")
"""
TAPE = """
import os, sys
sys.path.insert(0, {repository!r})
from distdl_jupyter.submit_process import submit_source
code = '''
import numpy as np, tensorflow as tf, horovod.tensorflow as hvd
hvd.init()
data = np.random.default_rng(0).random((32, 3)).astype("float32")
x = data[hvd.rank() :: hvd.size()]
weights = [tf.Variable(tf.fill((3, 1), 0.1 + hvd.rank())), tf.Variable([0.5 + hvd.rank()])]
hvd.broadcast_variables(weights, 0)
for step in range(20):
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean((x @ weights[0] + weights[1] - x.sum(1, keepdims=True)) ** 2)
    for weight, gradient in zip(weights, tape.gradient(loss, weights)):
        weight.assign_sub(0.1 * gradient)
[float(number) for weight in weights for number in weight.numpy().ravel()]
'''

def train(backend, ranks):
    options = {{"distributed_backend": backend, "process_count_per_node": ranks}}
    return submit_source(code.strip(), options=options).results(timeout=200)

(alone,) = train("horovod-gloo", 1)
assert max(abs(number - begin) for number, begin in zip(alone, (0.1, 0.1, 0.1, 0.5))) > 0.05, alone
for backend in ("horovod-gloo", "horovod-mpi"):
    first, second = train(backend, 2)
    assert first == second, backend
    assert max(abs(a - b) for a, b in zip(first, alone)) < 1e-5, (backend, first, alone)
print("one model")
"""


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_horovod_is_built_for_tensorflow_too_and_trains_with_it(other_environment: Path) -> None:
    """Takes minutes where this wheel was never built; it is kept in the user's cache as the other one."""
    python = other_environment / "bin" / "python"
    done = run(python, "-m", "distdl_jupyter.environment.horovod", "--framework", "torch,tensorflow", timeout=1200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Horovod 0.28.1 for torch and TensorFlow with Gloo and MPI is ")
    again = run(python, "-m", "distdl_jupyter.environment.horovod")
    assert "for torch and TensorFlow with Gloo and MPI is already installed and works" in again.stdout
    looked = run(python, "-m", "distdl_jupyter.cli", "doctor").stdout
    assert re.search(r"Horovod +.*0\.28\.1 for torch and TensorFlow", looked), looked
    for code, said in ((TAPE, "one model"), (KERAS, "same weights")):
        trained = run(python, "-c", code.format(repository=str(REPOSITORY)), timeout=600)
        assert trained.stdout.rstrip().endswith(said), trained.stdout + trained.stderr
