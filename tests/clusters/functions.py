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


def raises_with_a_code():
    from distdl_jupyter.core.errors import InvalidSpec

    raise InvalidSpec("The rate is negative.", code="rate-negative", hint="Set it to 0.1.")


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


def waits_in_the_first_attempt():
    """Wait to be ended, and after a restart return the number of ranks."""
    import os

    print("begun", flush=True)
    while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(0.1)
    return int(os.environ["WORLD_SIZE"])
