"""A process that is connected to Ray and calls what Horovod and Ray Train have, ours beside their own."""

import json
import sys
from pathlib import Path

import ray
import ray.cloudpickle

from distdl_jupyter import submit
from distdl_jupyter.compat.horovod.ray import RayExecutor
from tests.clusters import functions
from tests.clusters.functions import trains


def total(config):
    """Sum over the workers of a trainer of Ray, or the ranks of a job: they differ in who lets them meet.

    Ray's result has the metrics of a checkpoint only, so every rank writes its own into ``config["folder"]``.
    """
    import pathlib

    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    pathlib.Path(config["folder"], str(dist.get_rank())).write_text(str(float(value)))
    return float(value)


def breaks():
    raise ValueError("a bad batch")


def of_executor(kind):
    """Go through the calls of an executor, ours or Horovod's."""
    executor = kind(kind.create_settings(timeout_s=60), num_workers=2)
    executor.start(extra_env_vars={"OMP_NUM_THREADS": "1"})
    found = {
        "run": executor.run(trains),
        "execute": executor.execute(lambda executable: executable),
        "run_remote": ray.get(executor.run_remote(trains)),
    }
    said = ""
    try:
        ray.get(executor.run_remote(breaks))
    except ray.exceptions.RayTaskError as error:
        said = str(error)
    executor.shutdown()
    return {**found, "names the error": "ValueError: a bad batch" in said}


def of_trainer(folder):
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        total, train_loop_config={"folder": folder}, scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=folder),
    ).fit()  # fmt: skip
    return [float(Path(folder, rank).read_text()) for rank in "01"]


def connect(address):
    """Connect to a cluster, or start one: Ray gives its server for clients 30 s to start, which can be short here."""
    for tries_left in (2, 1, 0):
        try:
            ray.init(address or None, **({} if address else {"num_cpus": 4}))
        except ConnectionAbortedError:
            if not tries_left:
                raise
        else:
            return


if __name__ == "__main__":
    address, folder = sys.argv[1:]
    ray.cloudpickle.register_pickle_by_value(functions)
    connect(address)
    found = {"ours": of_executor(RayExecutor)}
    if not address:
        from horovod.ray import RayExecutor as Horovods

        found["theirs"] = of_executor(Horovods)
        options = {"compute_target": "ray", "address": ray.get_runtime_context().gcs_address}
        job = submit(total, ({"folder": folder},), **options, distributed_backend="torch", process_count_per_node=2)
        found["job"] = job.results()
        found["trainer"] = of_trainer(folder)
    print(f"\n{json.dumps(found)}")
