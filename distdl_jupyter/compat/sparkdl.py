"""``sparkdl.HorovodRunner`` of Databricks: the same call, with live logs and the first failure.

``from distdl_jupyter.compat.sparkdl import HorovodRunner`` in place of ``from sparkdl import HorovodRunner``
(https://docs.databricks.com/en/archive/machine-learning/train-model/horovod-runner.html).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distdl_jupyter.compat import blocking
from distdl_jupyter.core.errors import InvalidSpec


class HorovodRunner:
    """Runs a function on ranks of Horovod: ``np=-4`` on four processes here, ``np=4`` on four tasks of Spark."""

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        """``driver_log_verbosity`` is taken and has no meaning: the log of all ranks is there. Raises InvalidSpec."""
        if type(np) is not int or np == 0:
            raise InvalidSpec(
                "np must not be 0. A positive number counts Spark tasks, a negative number counts processes on "
                "this machine.",
                code="horovod-runner-np",
                field="np",
                hint="Set np=-2 for two processes on this machine.",
            )
        if driver_log_verbosity not in ("all", "log_callback_only"):
            raise InvalidSpec(
                f"driver_log_verbosity is {driver_log_verbosity!r}, but must be all or log_callback_only.",
                code="horovod-runner-verbosity",
                field="driver_log_verbosity",
            )
        self.num_processor = np

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Run ``main(**kwargs)`` and return the value of rank 0. Raises JobFailed, and what ``submit`` raises."""
        where = blocking.ranks(abs(self.num_processor), local=self.num_processor < 0)
        return blocking.run(main, (), kwargs, **where, distributed_backend="horovod-gloo").result()
