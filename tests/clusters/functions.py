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


def stuck(backend, how="sleep"):
    """Train three steps together; then rank 1 does ``how`` while rank 0 waits for it in a collective operation."""
    import os
    import threading
    import time

    import torch

    from distdl_jupyter import log

    if backend == "torch":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        meet = lambda: dist.all_reduce(torch.ones(3))  # noqa: E731 - one line travels better
        rank = dist.get_rank()
    else:
        import horovod.torch as hvd

        hvd.init()
        meet = lambda: hvd.allreduce(torch.ones(3))  # noqa: E731
        rank = hvd.rank()
    for step in range(3):
        meet()
        log(step=step, loss=1.0)
    if rank == 1:
        if how == "loop":
            while True:
                pass
        if how == "sleep":
            time.sleep(3600)
        if how == "program":
            os.execvp("sleep", ["sleep", "3600"])
        if how == "deadlock":
            first, second = threading.Lock(), threading.Lock()

            def other():
                with second:
                    time.sleep(0.2)
                    first.acquire()

            threading.Thread(target=other, daemon=True).start()
            with first:
                time.sleep(0.2)
                second.acquire()
    meet()
    return "together"
