"""``spark_tensorflow_distributor.MirroredStrategyRunner`` (1.0.0, 2021): the same call.

``from distdl_jupyter.compat.spark_tensorflow_distributor import MirroredStrategyRunner`` in place of its own import
(https://github.com/tensorflow/ecosystem/tree/master/spark/spark-tensorflow-distributor).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distdl_jupyter.compat import blocking


class MirroredStrategyRunner:
    """Runs a function on the workers of tf.distribute.MultiWorkerMirroredStrategy."""

    def __init__(
        self,
        *,
        num_slots: int,
        local_mode: bool = False,
        use_gpu: bool = True,
        gpu_resource_name: str = "gpu",
        use_custom_strategy: bool = False,
    ) -> None:
        """``num_slots`` workers: processes of this machine with ``local_mode``, else tasks of Spark."""
        self._slots, self._local, self._gpu, self._custom = num_slots, local_mode, use_gpu, use_custom_strategy

    def run(self, train_fn: Callable[..., Any], **kwargs: Any) -> Any:
        """Run ``train_fn(**kwargs)`` within the strategy's scope and return the value of the chief.

        With ``use_custom_strategy`` the function makes its strategy itself. Raises JobFailed, and what ``submit``
        raises.
        """
        options = {"use_gpu": None if self._gpu else False, "distributed_backend": "tensorflow"}
        what, given = (train_fn, ()) if self._custom else (within_strategy, (train_fn,))
        return blocking.run(what, given, kwargs, **blocking.ranks(self._slots, local=self._local), **options).result()


def within_strategy(train_fn: Callable[..., Any], **kwargs: Any) -> Any:
    """Call a function within the scope of a strategy of all workers."""
    import tensorflow as tf  # type: ignore[import-untyped]

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        return train_fn(**kwargs)
