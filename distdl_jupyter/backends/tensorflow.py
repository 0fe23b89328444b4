"""TensorFlow: ranks meet as the workers of ``tf.distribute.MultiWorkerMirroredStrategy``.

They find each other by the variable ``TF_CONFIG`` (https://www.tensorflow.org/guide/distributed_training, "Setting up
the TF_CONFIG environment variable"): the address of every worker, and which one this process is. Each worker is a
server itself, so each needs a port of its own on its node.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from distdl_jupyter.backends.base import Backend, common_environment
from distdl_jupyter.backends.usage import STRATEGY, TENSORFLOW, TRAINERS, Package, Usage
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.plan import Placement, Plan, RankSlot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distdl_jupyter.core.findings import Check
    from distdl_jupyter.core.source import Code
    from distdl_jupyter.core.spec import JobSpec


class TensorFlowBackend(Backend):
    """tf.distribute.MultiWorkerMirroredStrategy."""

    name = "tensorflow"
    labels: ClassVar[dict[str, dict[str, Any]]] = {"tensorflow": {}}
    rank_ports = 1
    order = 3
    usage = Usage(
        title="tf.distribute",
        meets=STRATEGY,
        begin=lambda _imports: "`strategy = tf.distribute.MultiWorkerMirroredStrategy()`",
        trainers=TRAINERS,
        words=r"\bMultiWorkerMirroredStrategy\b",
    )

    def unavailable(self, options: Any) -> str:
        """TensorFlow must be installed; it is looked for without importing it."""
        if find_spec("tensorflow") is None:
            return "TensorFlow is not installed in this environment. Run: pip install 'distdl-jupyter[tensorflow]'"
        return ""

    def modules(self, options: Any) -> tuple[str, ...]:
        """Return TensorFlow."""
        return ("tensorflow",)

    def packages(self, options: Any) -> tuple[Package, ...]:
        """Return TensorFlow."""
        return (TENSORFLOW,)

    def checks(self, code: Code, spec: JobSpec) -> Iterator[Check | None]:
        """Yield whether Keras trains under the strategy."""
        from distdl_jupyter.backends import checks

        yield from super().checks(code, spec)
        yield checks.keras_fit(code, spec)

    def plan(self, spec: JobSpec, placement: Placement, options: Any) -> Plan:
        """Every rank is a worker that listens at its own port; the first one is the chief."""
        workers = [_listens(spec, slot) for slot in placement.ranks]
        return Plan(
            environments=tuple(_environment(placement, slot, workers) for slot in placement.ranks),
            distribution="tensorflow",
        )


def _listens(spec: JobSpec, slot: RankSlot) -> str:
    if not slot.ports:
        raise InvalidSpec(
            f"{spec.compute_target} cannot reserve a port for every rank, which TensorFlow needs.",
            code="tensorflow-ports-unsupported",
            field="compute_target",
            hint="Use another cluster, or the backend torch or horovod-gloo.",
        )
    return f"{slot.address}:{slot.ports[0]}"


def _environment(placement: Placement, slot: RankSlot, workers: list[str]) -> dict[str, str]:
    task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": slot.rank}}
    variables = {"TF_CONFIG": json.dumps(task), "TF_NUM_INTRAOP_THREADS": str(placement.cores_of(slot))}
    if slot.gpu is not None:
        # A worker trains on every GPU that it sees, and takes its memory.
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, slot.gpus or (slot.gpu,)))
    return common_environment(placement, slot) | variables
