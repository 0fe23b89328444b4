"""A process that is connected to Ray, where the same function runs as a job and in a trainer of Ray Train."""

import json
import sys
from pathlib import Path

import ray

from distdl_jupyter import submit


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


def of_trainer(folder):
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        total, train_loop_config={"folder": folder}, scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=folder),
    ).fit()  # fmt: skip
    return [float(Path(folder, rank).read_text()) for rank in "01"]


if __name__ == "__main__":
    (folder,) = sys.argv[1:]
    ray.init(num_cpus=4)
    options = {"compute_target": "ray", "address": ray.get_runtime_context().gcs_address}
    job = submit(total, ({"folder": folder},), **options, distributed_backend="torch", process_count_per_node=2)
    print(f"\n{json.dumps({'job': job.results(), 'trainer': of_trainer(folder)})}")
