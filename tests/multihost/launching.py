"""Starts jobs of these stories and reads their output."""

from distdl_jupyter import submit
from tests.multihost.training import with_horovod, with_torch

BACKENDS = ("horovod-gloo", "horovod-mpi", "torch")


def launch(function, *args, backend="horovod-gloo", nodes=2, per_node=1, target="lab", **options):
    return submit(function, args, node_count=nodes, process_count_per_node=per_node, compute_target=target,
                  distributed_backend=backend, **options)  # fmt: skip


def trainer(backend):
    return with_torch if backend == "torch" else with_horovod


def said(job, rank=None, stream="out"):
    return [line.text for line in job.logs(rank) if line.stream == stream]
