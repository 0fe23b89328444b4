"""``pyspark.ml.torch.distributor`` and ``pyspark.ml.deepspeed``: the same calls, with live logs and the first failure.

``from distdl_jupyter.compat.pyspark import TorchDistributor`` in place of
``from pyspark.ml.torch.distributor import TorchDistributor`` (PySpark 4). With ``local_mode=False`` the ranks are tasks
of one barrier stage in the notebook's session of Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distdl_jupyter.compat import blocking
from distdl_jupyter.core.errors import InvalidSpec


class TorchDistributor:
    """Runs a function or a file on ranks of torch.distributed."""

    _backend = "torch"

    def __init__(
        self,
        num_processes: int = 1,
        local_mode: bool = True,
        use_gpu: bool = True,
        _ssl_conf: str = "pytorch.spark.distributor.ignoreSsl",
    ) -> None:
        """``use_gpu`` means a GPU each where there are GPUs; False hides them. Raises InvalidSpec."""
        self.num_processes, self.local_mode, self.use_gpu = num_processes, local_mode, use_gpu
        if type(num_processes) is not int or num_processes < 1:
            raise InvalidSpec(
                f"num_processes is {num_processes!r}, but must be an integer of at least 1.",
                code="torch-distributor-processes",
                field="num_processes",
            )

    def run(self, train_object: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any | None:
        """Run it and return the value of rank 0, None for a file. Raises JobFailed, and what ``submit`` raises."""
        job = blocking.run(train_object, args, kwargs, **self._options())
        return job.result() if callable(train_object) else None

    def _options(self) -> dict[str, Any]:
        where = blocking.ranks(self.num_processes, local=self.local_mode)
        return {**where, "distributed_backend": self._backend, "use_gpu": None if self.use_gpu else False}


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
        """``numGpus`` are the processes of each of ``nnodes`` nodes; raises InvalidSpec."""
        super().__init__(numGpus, localMode, useGpu)
        self.nnodes, self.deepspeed_config = nnodes, deepspeedConfig

    def _options(self) -> dict[str, Any]:
        nodes = {"node_count": self.nnodes, "process_count_per_node": self.num_processes}
        config = {} if self.deepspeed_config is None else {"deepspeed_config": self.deepspeed_config}
        return {**super()._options(), **nodes, **config}
