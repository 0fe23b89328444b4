"""Plans of backends, without starting anything."""

import pytest

from distdl_jupyter.backends.horovod import build_mpi_settings, parse_first_exit
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.plan import Placement, RankSlot
from distdl_jupyter.core.spec import JobSpec
from tests import plugin


def placement(nodes, per_node, gpus=0, remote_shell=()):
    places = tuple(
        RankSlot(rank, rank // per_node, f"node-{rank // per_node}", rank % per_node, rank % gpus if gpus else None)
        for rank in range(nodes * per_node)
    )
    return Placement(places, "127.0.0.1", (20_001,), "lo", cores_per_rank=1, emulated=nodes > 1,
                     remote_shell=remote_shell)  # fmt: skip


def plan(label, nodes=1, per_node=2, gpus=0, remote_shell=(), env=None, **given):
    backend, options = registry.load_backend(label, given)
    spec = JobSpec(
        id="i", name="n", node_count=nodes, process_count_per_node=per_node, distributed_backend=label,
        environment_variables=env or {},
    )  # fmt: skip
    return backend.plan(spec, placement(nodes, per_node, gpus, remote_shell), options)


def column(made, name):
    return [environment.get(name) for environment in made.environments]


def test_horovod_gloo_numbers_ranks_over_nodes():
    made = plan("horovod-gloo", nodes=2, per_node=2)
    assert column(made, "HOROVOD_RANK") == ["0", "1", "2", "3"]
    assert column(made, "HOROVOD_LOCAL_RANK") == ["0", "1", "0", "1"]
    assert column(made, "HOROVOD_CROSS_RANK") == ["0", "0", "1", "1"]
    assert column(made, "HOROVOD_HOSTNAME") == ["node-0", "node-0", "node-1", "node-1"]
    assert set(column(made, "HOROVOD_GLOO_RENDEZVOUS_PORT")) == {"20001"}
    assert [service.name for service in made.services] == ["Horovod rendezvous"]
    assert made.launcher is None


def test_horovod_mpi_is_started_by_mpirun_and_puts_no_value_on_its_command_line():
    made = plan("horovod-mpi")
    assert made.launcher.argv[0].endswith("mpirun")
    assert "-np" in made.launcher.argv
    assert not any("=" in word for word in made.launcher.argv)
    assert made.services == ()


def test_mpirun_reaches_emulated_nodes_through_the_remote_shell_of_their_placement():
    made = plan("horovod-mpi", nodes=2, per_node=3, remote_shell=("/opt/sh", "-x"))
    words = made.launcher.argv
    assert words[words.index("--host") + 1] == "node-0:3,node-1:3"
    assert words[words.index("--map-by") + 1] == "ppr:3:node:OVERSUBSCRIBE"
    assert words[words.index("-np") + 1] == "6"
    assert made.launcher.environment["PRTE_MCA_plm_ssh_agent"] == "/opt/sh -x"
    assert made.launcher.environment["OMPI_MCA_plm_rsh_agent"] == "/opt/sh -x"
    assert made.launcher.environment["OMPI_MCA_btl_tcp_if_include"] == "lo"
    assert "PRTE_MCA_prte_if_include" not in made.launcher.environment, "daemons do not meet over the loopback"
    assert not any("=" in word for word in words)
    assert dict(plan("horovod-mpi").launcher.environment) == {"OMPI_MCA_btl": "^tcp"}, "one machine: shared memory"


def test_ranks_and_daemons_of_mpirun_talk_on_the_network_that_the_hosts_share():
    environment = build_mpi_settings(("/opt/sh",), "10.0.0.0/24")
    for name in ("OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include", "OMPI_MCA_oob_tcp_if_include"):
        assert environment[name] == "10.0.0.0/24"


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ((), "needs Linux, permission to set"),
        (("/my env/bin/python",), "'/my env/bin/python', because Open MPI allows no space"),
    ],
)
def test_mpi_over_nodes_is_refused_without_a_shell_that_open_mpi_can_start(shell, words):
    with pytest.raises(InvalidSpec, match=f"horovod-mpi cannot .* several nodes.*{words}"):
        plan("horovod-mpi", nodes=2, remote_shell=shell)


def test_a_plan_names_its_distribution():
    assert [plan(label).distribution for label in ("horovod-mpi", "horovod-gloo", "torch")] == ["mpi", "mpi", "torch"]


def test_horovod_settings_become_its_variables():
    made = plan("horovod-gloo", fusion_threshold_mb=64, cycle_time_ms=2.5)
    assert set(column(made, "HOROVOD_FUSION_THRESHOLD")) == {str(64 * 2**20)}
    assert set(column(made, "HOROVOD_CYCLE_TIME")) == {"2.5"}


def test_torch_gets_the_variables_of_torchrun():
    made = plan("torch", nodes=2, per_node=2)
    for name, expected in {
        "RANK": ["0", "1", "2", "3"], "LOCAL_RANK": ["0", "1", "0", "1"], "GROUP_RANK": ["0", "0", "1", "1"],
        "WORLD_SIZE": ["4"] * 4, "LOCAL_WORLD_SIZE": ["2"] * 4, "MASTER_ADDR": ["127.0.0.1"] * 4,
        "MASTER_PORT": ["20001"] * 4,
    }.items():  # fmt: skip
        assert column(made, name) == expected


def test_each_rank_gets_a_gpu_of_its_own():
    made = plan("torch-nccl", per_node=2, gpus=2)
    assert column(made, "CUDA_VISIBLE_DEVICES") == ["0,1", "0,1"], (
        "cuda:LOCAL_RANK is the rank's own, as under torchrun"
    )
    assert column(made, "DISTDL_TORCH_TRANSPORT") == ["nccl", "nccl"]


@pytest.mark.parametrize(
    ("gpus", "there", "remedy"),
    [
        (0, "there are none", "Use -b torch-gloo."),
        (1, "there is 1 GPU", "Use -p 1, or -b torch-gloo."),
        (2, "there are 2 GPUs", "Use -p 2, or -b torch-gloo."),
    ],
)
def test_nccl_without_a_gpu_for_each_rank_is_refused(gpus, there, remedy):
    with pytest.raises(InvalidSpec) as refused:
        plan("torch-nccl", per_node=4, gpus=gpus)
    assert refused.value.code == "nccl-needs-gpus"
    assert refused.value.args[0] == f"NCCL needs 4 GPUs for 4 processes, but {there}."
    assert refused.value.hint == remedy


def test_an_nccl_that_may_share_gpus_is_not_refused():
    plan("torch-nccl", per_node=4, gpus=1, env={"NCCL_MULTI_RANK_GPU_ENABLE": "1"})


def test_emulated_nodes_see_their_own_gpus():
    made = plan("horovod-gloo", nodes=2, per_node=2, gpus=4)
    assert column(made, "CUDA_VISIBLE_DEVICES") == ["0,1", "0,1", "2,3", "2,3"]


def test_ranks_share_gpus_where_there_are_fewer():
    assert column(plan("torch", per_node=4, gpus=2), "CUDA_VISIBLE_DEVICES") == ["0", "1", "0", "1"]


@pytest.mark.parametrize(
    ("label", "options"),
    [("horovod-gloo", {"controller": "nccl"}), ("torch", {"transport": "mpi"}), ("torch", {"fusion_threshold_mb": 1})],
)
def test_settings_that_do_not_exist_are_refused(label, options):
    with pytest.raises(InvalidSpec):
        plan(label, **options)


OPEN_MPI_4 = """
--------------------------------------------------------------------------
mpirun noticed that process rank 1 with PID 4242 on node vm exited on signal 9 (Killed).
--------------------------------------------------------------------------
"""
OPEN_MPI_5 = """
--------------------------------------------------------------------------
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-17150@1,3]
   Exit code:    7
--------------------------------------------------------------------------
"""
OPEN_MPI_4_EXIT = """
  Process name: [[36475,1],2]
  Exit code:    1
"""
OPEN_MPI_5_EARLY = """
prterun has exited due to process rank 1 with PID 21461 on node vm exiting
improperly. There are three reasons this could occur:
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPEN_MPI_5_EARLY, (1, 0, None)),
        (OPEN_MPI_4, (1, None, 9)),
        (OPEN_MPI_5, (3, 7, None)),
        (OPEN_MPI_4_EXIT, (2, 1, None)),
        ("nothing", None),
    ],
)
def test_the_rank_named_by_mpirun_is_parsed(text, expected):
    assert parse_first_exit(text) == expected


def test_a_backend_may_have_a_hyphen_in_its_name(tmp_path, monkeypatch):
    code = """
        from distdl_jupyter.backends.plain import PlainBackend
        class Xla(PlainBackend):
            name = "torch-xla"
            labels = {}
    """
    plugin.install(tmp_path, monkeypatch, code, {"backends": {"torch-xla": "Xla"}})
    assert registry.load_backend("torch-xla", {})[0].name == "torch-xla"
    assert registry.load_backend("torch", {})[0].name == "torch"
