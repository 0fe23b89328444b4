"""The calls of Databricks, Spark and Horovod by one other import: the same values back."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

from distdl_jupyter.compat import horovod, pyspark
from distdl_jupyter.compat.horovod import spark as horovod_spark
from distdl_jupyter.core.errors import DistDLError
from tests.hosts import needs_hosts
from tests.processes import executable

pytestmark = pytest.mark.timeout(300)


def trains(start, step=1):
    """Sum over the ranks, as a user of any of these calls would write it."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([float(start + step * dist.get_rank())])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return float(total)


def averages(factor):
    import horovod.torch as hvd
    import torch

    hvd.init()
    return hvd.rank(), float(hvd.allreduce(torch.tensor([factor * hvd.rank()]), op=hvd.Sum))


# values -----------------------------------------------------------------------------------------


def test_torch_distributor_returns_what_rank_0_returned():
    assert pyspark.TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(trains, 1, step=2) == 4.0


@pytest.mark.full
def test_torch_distributor_runs_a_file_with_its_arguments(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os, sys, pathlib\npathlib.Path(sys.argv[1], os.environ['RANK']).write_text(sys.argv[2])")
    assert pyspark.TorchDistributor(2, use_gpu=False).run(str(script), str(tmp_path), "--epochs=3") is None
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["--epochs=3"] * 2


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
def test_deepspeed_distributor_gives_its_config_to_the_ranks():
    def sees():
        import deepspeed
        import torch

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        model = torch.nn.Linear(2, 1)
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1)
        )
        return engine.zero_optimization_stage(), engine.train_batch_size()

    config = {"train_micro_batch_size_per_gpu": 3, "zero_optimization": {"stage": 1},
              "zero_allow_untested_optimizer": True}  # fmt: skip
    made = pyspark.DeepspeedTorchDistributor(numGpus=2, nnodes=1, localMode=True, useGpu=False, deepspeedConfig=config)
    assert made.run(sees) == (1, 6)


@pytest.mark.full
def test_horovod_runner_runs_below_zero_on_this_machine():
    assert horovod.HorovodRunner(np=-2).run(averages, factor=3.0) == (0, 3.0)


@pytest.mark.full
def test_horovod_run_returns_the_values_of_all_ranks_as_horovods_own():
    """Run beside it: the same function, the same values in the same order."""
    ours = horovod.run(averages, (3.0,), np=2)
    code = (
        "import horovod, sys, json\nsys.path.insert(0, '.')\nfrom tests.compat.test_old_calls import averages\n"
        "print('VALUES', json.dumps(horovod.run(averages, (3.0,), np=2, use_gloo=True)))"
    )
    theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert f"VALUES {[list(one) for one in ours]!s}" in theirs.stdout, theirs.stderr[-2000:]


@needs_hosts
@pytest.mark.full
@pytest.mark.parametrize(("np", "hosts", "on"), [(2, "node-a:1,node-b:1", ["node-a", "node-b"]),
                                                 (2, "node-a:2,node-b:2", ["node-a", "node-a"])])  # fmt: skip
def test_horovod_run_runs_on_its_hosts_and_fills_their_slots_in_order(hosts_of, tmp_path, monkeypatch, np, hosts, on):
    """``ssh`` finds the hosts in the user's own configuration, for which a program of its name stands here."""
    lab = hosts_of(2, own_processes=True)
    ssh = executable(tmp_path / "bin" / "ssh", f'exec {shutil.which("ssh")} -F {lab.ssh_config} "$@"')
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")

    def where():
        import socket

        import horovod.torch as hvd

        hvd.init()
        return socket.gethostname(), hvd.rank(), hvd.local_rank()

    values = horovod.run(where, np=np, hosts=hosts)
    assert [one[:2] for one in values] == list(zip(on, range(np), strict=True))


# refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: pyspark.TorchDistributor(0), "option-out-of-range"),
        (lambda: horovod.HorovodRunner(np=0), "option-out-of-range"),
        (lambda: horovod.run(trains, np=2, ssh_port=22), "horovod-argument-unsupported"),
        (lambda: horovod.run(trains, np=2, min_np=1), "horovod-argument-unsupported"),
        (lambda: horovod.run(trains, (1,), np=3, hosts="a:2,b:2"), "processes-not-divisible"),
        (lambda: horovod_spark.run(trains, num_proc=2, executable="x"), "horovod-argument-unsupported"),
        (lambda: pyspark.TorchDistributor(2, local_mode=False).run(trains, 1), "spark-no-master"),
    ],
)
def test_what_cannot_be_carried_over_is_refused(call, code):
    with pytest.raises(DistDLError) as refused:
        call()
    assert refused.value.code == code


def test_a_script_takes_no_keyword_arguments():
    with pytest.raises(TypeError, match="only positional arguments"):
        pyspark.TorchDistributor().run("train.py", epochs=3)
