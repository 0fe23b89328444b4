"""What jobs on schedulers' clusters run."""

import time


def trains():
    import horovod.torch as hvd
    import torch

    hvd.init()
    total = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum)
    print(f"rank {hvd.rank()} of {hvd.size()}", flush=True)
    return float(total)


def breaks():
    import os

    import torch.distributed as dist

    dist.init_process_group("gloo")
    if os.environ["RANK"] == "1":
        raise ValueError("a bad batch")
    dist.barrier()


def waits():
    print("begun", flush=True)
    time.sleep(600)


def shows_gpus(seconds):
    import os

    print("begun", flush=True)
    time.sleep(seconds)
    return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["DISTDL_GPU"]


def sums():
    import os

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    spark = [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]
    return float(value), spark


def uses_a_package():
    """Return the version of a package that only the job's environment has."""
    import oneleaf

    return oneleaf.VERSION


def stuck(backend):
    """Rank 1 sleeps while rank 0 waits for it."""
    import torch

    from distdl_jupyter import log

    if backend == "torch":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank, meet = dist.get_rank(), lambda: dist.all_reduce(torch.ones(3))
    else:
        import horovod.torch as hvd

        hvd.init()
        rank, meet = hvd.rank(), lambda: hvd.allreduce(torch.ones(3))
    for step in range(3):
        meet()
        log(step=step, loss=1.0)
    if rank == 1:
        time.sleep(3600)
    meet()
