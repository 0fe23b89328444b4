"""TensorFlow: ranks are the workers of ``tf.distribute.MultiWorkerMirroredStrategy``.

The variable ``TF_CONFIG`` contains the addresses of all workers and the index of this one
(https://www.tensorflow.org/guide/distributed_training, "Setting up the TF_CONFIG environment variable"). Each worker
listens on a port of its node.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from typing import Any, ClassVar

from distdl_jupyter.backends.base import (
    TENSORFLOW,
    TRAINERS,
    Backend,
    CodePattern,
    JobPackage,
    build_common_environment,
)
from distdl_jupyter.core.errors import Check, Finding, InvalidSpec
from distdl_jupyter.core.plan import Placement, Plan, RankSlot
from distdl_jupyter.core.source import CodeAnalysis
from distdl_jupyter.core.spec import JobSpec

#: The names of TensorFlow's strategy class.
STRATEGY_NAMES = ("MultiWorkerMirroredStrategy", "CollectiveAllReduceStrategy")
#: If this variable is 1, ``tf.keras`` is Keras 2, from the package tf_keras.
LEGACY_VARIABLE = "TF_USE_LEGACY_KERAS"


class TensorFlowBackend(Backend):
    """tf.distribute.MultiWorkerMirroredStrategy."""

    name = "tensorflow"
    labels: ClassVar[dict[str, dict[str, Any]]] = {"tensorflow": {}}
    rank_ports = 1
    order = 3
    usage = CodePattern(
        title="tf.distribute",
        initializers=STRATEGY_NAMES,
        initialization=lambda _imports: "`strategy = tf.distribute.MultiWorkerMirroredStrategy()`",
        trainers=TRAINERS,
        pattern=r"\bMultiWorkerMirroredStrategy\b",
    )

    def unavailable(self, options: Any) -> str:
        """Return the remedy if TensorFlow is not installed, without importing it."""
        if find_spec("tensorflow") is None:
            return "TensorFlow is not installed in this environment. Run: pip install 'distdl-jupyter[tensorflow]'"
        return ""

    def modules(self, options: Any) -> tuple[str, ...]:
        """Return TensorFlow."""
        return ("tensorflow",)

    def packages(self, options: Any) -> tuple[JobPackage, ...]:
        """Return TensorFlow."""
        return (TENSORFLOW,)

    def checks(self, code: CodeAnalysis, spec: JobSpec) -> Iterator[Check | None]:
        """Also yield the check that Keras can train under the strategy."""
        yield from super().checks(code, spec)
        yield check_keras_fit(code, spec)

    def plan(self, spec: JobSpec, placement: Placement, options: Any) -> Plan:
        """Return the plan: every rank is a worker that listens on its own port."""
        workers = [_format_address(spec, slot) for slot in placement.ranks]
        return Plan(
            environments=tuple(_build_environment(placement, slot, workers) for slot in placement.ranks),
            distribution="tensorflow",
        )


def _format_address(spec: JobSpec, slot: RankSlot) -> str:
    if not slot.ports:
        raise InvalidSpec(
            f"{spec.compute_target} cannot reserve a port for every rank, which TensorFlow needs.",
            code="tensorflow-ports-unsupported",
            field="compute_target",
            hint="Use another cluster, or the backend torch or horovod-gloo.",
        )
    return f"{slot.address}:{slot.ports[0]}"


def _build_environment(placement: Placement, slot: RankSlot, workers: list[str]) -> dict[str, str]:
    task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": slot.rank}}
    cores = str(slot.cores or placement.cores_per_rank)
    variables = {"TF_CONFIG": json.dumps(task), "TF_NUM_INTRAOP_THREADS": cores}
    if slot.gpu is not None:
        # A worker trains on every visible GPU and allocates its memory.
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, slot.gpus or (slot.gpu,)))
    return build_common_environment(placement, slot) | variables


def check_keras_fit(code: CodeAnalysis, spec: JobSpec, environment: Mapping[str, str] = os.environ) -> Check | None:
    """Check that ``Model.fit`` works under MultiWorkerMirroredStrategy. Return None for code that does not use both.

    Keras 3 passes the strategy's distributed batches to TensorFlow unchanged, which fails with "Attempt to convert a
    value (PerReplica" (https://github.com/keras-team/keras/issues/20585); tf_keras supports them.
    """
    strategy, fit = code.find_call(*STRATEGY_NAMES), code.find_call("fit")
    if spec.process_count == 1 or strategy is None or fit is None:
        return None
    version, sets_legacy = get_keras_version(), any(LEGACY_VARIABLE in source.text for source in code.texts)
    if version < 3 or sets_legacy or uses_legacy_keras(spec, environment) or code.needs("tf_keras"):
        return Check("Keras", "Keras 2 is supported" if version else "not installed")
    finding = Finding(
        "warning",
        "keras-3-fit",
        f"fit() in {fit.location} fails, because Keras {version} does not train under MultiWorkerMirroredStrategy.",
        f'Run "pip install tf-keras", and set os.environ["{LEGACY_VARIABLE}"] = "1" before TensorFlow is imported.',
    )
    return Check("Keras", "does not support this strategy", (finding,))


def uses_legacy_keras(spec: JobSpec, environment: Mapping[str, str]) -> bool:
    """Return whether the ranks of a job that is submitted from this environment use Keras 2."""
    return {**environment, **spec.environment_variables}.get(LEGACY_VARIABLE) == "1"


def get_keras_version() -> int:
    """Return the major version of Keras, or 0 if it is not installed."""
    try:
        return int(metadata.version("keras").partition(".")[0])
    except (metadata.PackageNotFoundError, ValueError):
        return 0
