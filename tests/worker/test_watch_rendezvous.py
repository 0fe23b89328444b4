"""Reports of ranks when they connect to each other and when they end."""

import pytest

from distdl_jupyter.worker.hooks import distributed
from distdl_jupyter.worker.hooks.imports import HookFinder
from tests.processes import free_port
from tests.worker import ranks

TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
"""


def torch_environment(size):
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def run_all(folder, environments):
    size = len(environments)
    started = [ranks.start(folder, rank, size, **more) for rank, more in enumerate(environments)]
    return [ranks.end(process) for process in started]


def types_of(ended):
    return [report["type"] for report in ended.reports if report["type"] not in ("environment", "note")]


def test_torch_ranks_report_their_rendezvous_and_destroy_the_group(folder):
    folder.cell(TORCH + "total.item()")
    for rank, ended in enumerate(run_all(folder, torch_environment(2))):
        assert ended.code == 0, ended.err
        assert folder.value(rank) == 3.0
        assert types_of(ended) == ["hello", "rendezvous", "ready", "result"]
        (ready,) = ended.of("ready")
        assert (ready["backend"], ready["size"]) == ("torch-gloo", 2)
        assert "destroy_process_group" not in ended.err, "torch warns about a group that nobody shut down"


@pytest.mark.full
def test_ranks_that_are_done_early_wait_for_those_that_still_need_them(folder):
    """Rank 0 keeps the store and has nothing to do; rank 2 asks the store a second later."""
    folder.cell("""
import os, time, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 2:
    time.sleep(1)
    dist.new_group([2], group_desc="late")
dist.get_rank()
""")
    for rank, ended in enumerate(run_all(folder, torch_environment(3))):
        assert ended.code == 0, ended.err
        assert folder.value(rank) == rank
        assert ended.err == ""


@pytest.mark.full
def test_a_rank_that_ends_after_the_store_is_gone_prints_nothing(folder):
    folder.cell("""
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
pid = torch.tensor([os.getpid() if dist.get_rank() == 0 else 0])
dist.all_reduce(pid)
while dist.get_rank() == 1 and os.path.exists(f"/proc/{pid.item()}"):
    time.sleep(0.01)
""")
    for ended in run_all(folder, torch_environment(2)):
        assert (ended.code, ended.err) == (0, "")


@pytest.mark.full
def test_a_model_deleted_after_its_group_does_not_destroy_the_group(folder):
    """In torch's destructor of the group a rank can wait for ever for a thread that waits for the interpreter."""
    folder.cell("""
import torch, weakref, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.ones(2, 4)).sum().backward()
group = weakref.ref(dist.group.WORLD)
dist.destroy_process_group()
del model
(dist.is_initialized(), group() is not None)
""")
    for rank, ended in enumerate(run_all(folder, torch_environment(2))):
        assert ended.code == 0, ended.err
        assert folder.value(rank) == (False, True)


@pytest.mark.full
def test_a_device_mesh_is_a_rendezvous_too(folder):
    code = "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cpu', (2,)).size()"
    for ended in run_all(folder.cell(code), torch_environment(2)):
        assert ended.code == 0, ended.err
        assert types_of(ended) == ["hello", "rendezvous", "ready", "result"]


def test_ranks_that_cannot_connect_report_that_they_tried(folder):
    code = "import torch.distributed as dist\ndist.init_process_group('gloo', init_method='env://')"
    ended = ranks.run(folder.cell(code))
    assert ended.code == 1
    assert types_of(ended) == ["hello", "rendezvous", "result"]
    assert "environment variable RANK expected" in ended.error["message"]
    assert "hooks/distributed.py" not in ended.err, "our own frame is no part of the printed traceback"


@pytest.mark.parametrize("module", ["horovod.keras", "horovod.tensorflow.keras"])
def test_both_of_horovod_s_keras_modules_are_refused(module):
    """Asked of the import system itself: Horovod's package for TensorFlow is not built here."""
    finder = HookFinder()
    distributed.install_hooks(finder)
    with pytest.raises(ImportError, match=f"^{module} of Horovod"):
        finder.find_spec(module)
    assert finder.find_spec("horovod.spark") is None
