"""The API of ``pyspark.ml.torch.distributor`` and ``pyspark.ml.deepspeed``, with live logs and the first failure.

Use ``from distdl_jupyter.compat.pyspark import TorchDistributor`` instead of ``from pyspark.ml.torch.distributor import
TorchDistributor`` (PySpark 4). With ``local_mode=False``, the ranks are tasks of one barrier stage in the notebook's
Spark session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distdl_jupyter import compat
from distdl_jupyter.core.options import check_count


class TorchDistributor:
    """Runs a function or a file on ranks of torch.distributed."""

    _backend = "torch"

    def __init__(
        self,
        num_processes: int = 1,
        local_mode: bool = True,
        use_gpu: bool = True,
    ) -> None:
        """``use_gpu=True`` gives each rank a GPU if there are GPUs; False hides them. Raises InvalidSpec."""
        self.num_processes, self.local_mode, self.use_gpu = num_processes, local_mode, use_gpu
        check_count(num_processes, "num_processes")

    def run(self, train_object: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any | None:
        """Run it and return the value of rank 0, or None for a file. Raises JobFailed and the errors of ``submit``."""
        job = compat.run(train_object, args, kwargs, **self._build_options())
        return job.result() if callable(train_object) else None

    def _build_options(self) -> dict[str, Any]:
        placement = compat.build_rank_options(self.num_processes, is_local=self.local_mode)
        return {**placement, "distributed_backend": self._backend, "use_gpu": None if self.use_gpu else False}


class DeepspeedTorchDistributor(TorchDistributor):
    """Runs a function or a file on ranks of DeepSpeed."""

    _backend = "deepspeed"

    def __init__(
        self,
        numGpus: int = 1,
        nnodes: int = 1,
        localMode: bool = True,
        useGpu: bool = True,
        deepspeedConfig: str | dict[str, Any] | None = None,
    ) -> None:
        """``numGpus`` is the number of processes on each of ``nnodes`` nodes. Raises InvalidSpec."""
        super().__init__(numGpus, localMode, useGpu)
        self.nnodes, self.deepspeed_config = nnodes, deepspeedConfig

    def _build_options(self) -> dict[str, Any]:
        nodes = {"node_count": self.nnodes, "process_count_per_node": self.num_processes}
        config = {} if self.deepspeed_config is None else {"deepspeed_config": self.deepspeed_config}
        return {**super()._build_options(), **nodes, **config}
