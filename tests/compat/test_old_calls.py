"""The calls of Databricks, Spark and Horovod by one other import: the same signature, the same values back."""

import importlib.util
import inspect
import os
import shutil
import subprocess
import sys

import pytest

from distdl_jupyter.compat import horovod, pyspark, spark_tensorflow_distributor, sparkdl
from distdl_jupyter.compat.horovod import spark as horovod_spark
from distdl_jupyter.core.errors import InvalidSpec, JobFailed
from tests.hosts import needs_hosts

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


# signatures -------------------------------------------------------------------------------------

REAL = [
    ("pyspark.ml.torch.distributor", "TorchDistributor", pyspark.TorchDistributor),
    ("pyspark.ml.deepspeed.deepspeed_distributor", "DeepspeedTorchDistributor", pyspark.DeepspeedTorchDistributor),
    ("horovod", "run", horovod.run),
    ("horovod.spark", "run", horovod_spark.run),
]


def shape(call):
    return [(one.name, one.kind, one.default) for one in inspect.signature(call).parameters.values()]


@pytest.mark.filterwarnings("ignore:The distutils package:DeprecationWarning")  # horovod.spark imports it
@pytest.mark.parametrize(("module", "name", "ours"), REAL)
def test_the_signature_is_that_of_the_real_call(module, name, ours):
    pytest.importorskip(module.partition(".")[0])
    theirs = getattr(importlib.import_module(module), name)
    if inspect.isclass(theirs):
        assert shape(ours.__init__) == shape(theirs.__init__)
        assert shape(ours.run) == shape(theirs.run)
    elif name == "run" and module == "horovod":
        # None and 1 both mean one process there; ours says which.
        assert [one[:2] for one in shape(ours)] == [one[:2] for one in shape(theirs)]
        assert [one[2] for one in shape(ours)] == [one[2] for one in shape(theirs)]
    else:
        assert shape(ours) == shape(theirs)


def test_the_signatures_of_what_is_not_installed_here_are_as_published():
    """HorovodRunner of spark-deep-learning 1.6, MirroredStrategyRunner of release 1.0.0."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    runner = sparkdl.HorovodRunner.__init__
    assert shape(runner)[1:] == [
        ("np", keyword, inspect.Parameter.empty), ("driver_log_verbosity", keyword, "log_callback_only"),
    ]  # fmt: skip
    mirrored = spark_tensorflow_distributor.MirroredStrategyRunner.__init__
    assert shape(mirrored)[1:] == [
        ("num_slots", keyword, inspect.Parameter.empty), ("local_mode", keyword, False), ("use_gpu", keyword, True),
        ("gpu_resource_name", keyword, "gpu"), ("use_custom_strategy", keyword, False),
    ]  # fmt: skip


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
def test_a_failure_is_raised_with_the_ranks_own_exception():
    """PySpark's own hides it: its RuntimeError tells of a command that returned a non-zero exit status."""

    def breaks():
        import os

        if os.environ["RANK"] == "1":
            raise ValueError("a bad batch")

    with pytest.raises(JobFailed, match="a bad batch"):
        pyspark.TorchDistributor(2, use_gpu=False).run(breaks)


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
    assert sparkdl.HorovodRunner(np=-2).run(averages, factor=3.0) == (0, 3.0)


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


@pytest.mark.full
def test_horovod_run_fills_the_slots_of_localhost_on_this_machine():
    assert horovod.run(averages, (3.0,), np=2, hosts="localhost:2") == [(0, 3.0), (1, 3.0)]


@needs_hosts
@pytest.mark.full
@pytest.mark.parametrize(("np", "hosts", "on"), [(2, "node-a:1,node-b:1", ["node-a", "node-b"]),
                                                 (2, "node-a:2,node-b:2", ["node-a", "node-a"])])  # fmt: skip
def test_horovod_run_runs_on_its_hosts_and_fills_their_slots_in_order(hosts_of, tmp_path, monkeypatch, np, hosts, on):
    """``ssh`` finds the hosts in the user's own configuration, for which a program of its name stands here."""
    lab = hosts_of(2, own_processes=True)
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {lab.ssh_config} "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")

    def where():
        import socket

        import horovod.torch as hvd

        hvd.init()
        return socket.gethostname(), hvd.rank(), hvd.local_rank()

    values = horovod.run(where, np=np, hosts=hosts)
    assert [one[:2] for one in values] == list(zip(on, range(np), strict=True))


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
@pytest.mark.parametrize("custom", [False, True])
def test_mirrored_strategy_runner_gives_the_function_its_strategy(custom):
    def replicas():
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy() if custom else tf.distribute.get_strategy()
        return strategy.num_replicas_in_sync

    made = spark_tensorflow_distributor.MirroredStrategyRunner(
        num_slots=2, local_mode=True, use_gpu=False, use_custom_strategy=custom
    )
    assert made.run(replicas) == 2


# refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: pyspark.TorchDistributor(0), "num_processes is 0, but must be an integer of at least 1."),
        (lambda: sparkdl.HorovodRunner(np=0), "np must not be 0.*Spark tasks"),
        (lambda: sparkdl.HorovodRunner(np=2, driver_log_verbosity="some"), "must be all or log_callback_only"),
        (lambda: horovod.run(trains, np=2, ssh_port=22), "The argument ssh_port of horovod.run is not supported."),
        (lambda: horovod.run(trains, np=2, min_np=1), "The argument min_np of horovod.run.* min_node_count=1"),
        (lambda: horovod.run(trains, np=3, hosts="a:2,b:2"), "np is 3, which makes 2 on a, 1 on b.* Set np to 4"),
        (lambda: horovod.run(trains, np=5, hosts="a:2,b:2"), "np is 5, but the hosts have 4 slots."),
        (lambda: horovod_spark.run(trains, executable="x"), "executable of horovod.spark.run is not supported"),
        (lambda: pyspark.TorchDistributor(2, local_mode=False).run(trains, 1), "this process has no Spark session"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(call, said):
    with pytest.raises(InvalidSpec, match=said):
        call()


def test_a_script_takes_no_keyword_arguments():
    with pytest.raises(TypeError, match="no keyword arguments"):
        pyspark.TorchDistributor().run("train.py", epochs=3)
