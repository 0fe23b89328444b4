"""DeepSpeed: torch.distributed, with a config that ``deepspeed.initialize()`` uses if the code does not pass one.

The config has DeepSpeed's format (https://www.deepspeed.ai/docs/config-json/), with options for its most common keys.
The job is rejected before the start if the batch size is not the product of its factors, the ZeRO stage is unknown, or
an offload needs another stage.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from distdl_jupyter.backends.base import TORCH, TRAINERS, CodePattern, JobPackage
from distdl_jupyter.backends.torch import TorchBackend, TorchOptions
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.plan import Placement, Plan, option
from distdl_jupyter.core.spec import JobSpec

Config = dict[str, Any]
#: The environment variable of ranks with the config as JSON.
CONFIG_VARIABLE = "DISTDL_DEEPSPEED_CONFIG"
# Config keys of the batch size and its factors.
_BATCH_KEY, _MICRO_KEY, _STEPS_KEY = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
#: The config keys that each value of ``offload`` sets.
_OFFLOADS = {"optimizer": ("offload_optimizer",), "optimizer and parameters": ("offload_optimizer", "offload_param")}
#: Config keys that make several ranks process the same batch, so that there are fewer batches than ranks.
_SHARING_KEYS = ("tensor_parallel", "sequence_parallel_size", "mesh_param")


@dataclass(frozen=True, slots=True)
class DeepSpeedOptions(TorchOptions):
    """Settings of the deepspeed backend; the other options override the config."""

    deepspeed_config: str | dict[str, Any] = option(  # noqa: RUF009 - like dataclasses.field
        "", "DeepSpeed config: a file, JSON or a dict; empty if the code has its own"
    )
    zero_stage: int | None = option(
        None, "what is sharded across ranks: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters"
    )
    offload: str = option("", "what to offload from the GPU to host memory", choices=("", *_OFFLOADS))
    micro_batch: int | None = option(None, "samples per rank and micro-batch")
    gradient_accumulation: int | None = option(None, "micro-batches per step")
    precision: str = option("", "number format for training", choices=("", "fp32", "bf16", "fp16"))

    def __post_init__(self) -> None:
        """Read the config now, so that later changes of its file do not affect the job. Raises InvalidSpec."""
        object.__setattr__(self, "deepspeed_config", _to_json(self.deepspeed_config))

    def build_config(self) -> Config:
        """Return the whole config, or {} if no option is set. Raises InvalidSpec."""
        config: Config = json.loads(str(self.deepspeed_config) or "{}")
        zero = dict(config.get("zero_optimization") or {})
        if self.zero_stage is not None:
            zero["stage"] = self.zero_stage
        for key in _OFFLOADS.get(self.offload, ()):
            zero[key] = {**(zero.get(key) or {}), "device": "cpu"}
        if self.offload:
            # Keep the optimizer of the code. By default, DeepSpeed requires its own optimizer for an offload.
            config.setdefault("zero_force_ds_cpu_optimizer", False)
        if zero:
            config["zero_optimization"] = zero
            config.setdefault("zero_allow_untested_optimizer", True)
        if self.precision:
            config |= {kind: {**(config.get(kind) or {}), "enabled": self.precision == kind} for kind in _HALF_FORMATS}
        sizes = {_MICRO_KEY: self.micro_batch, _STEPS_KEY: self.gradient_accumulation}
        return config | {key: value for key, value in sizes.items() if value is not None}


#: Config keys of the 16-bit number formats.
_HALF_FORMATS = ("bf16", "fp16")


class DeepSpeedBackend(TorchBackend):
    """torch.distributed, with a config for ``deepspeed.initialize()``."""

    name = "deepspeed"
    Options = DeepSpeedOptions
    labels: ClassVar[dict[str, dict[str, Any]]] = {"deepspeed": {}}
    aliases: ClassVar[dict[str, str]] = {}
    replaces: ClassVar[dict[str, str]] = {"deepspeed": "deepspeed"}
    order = 3
    usage = CodePattern(
        title="DeepSpeed",
        initializers=("initialize", "init_distributed"),
        package="deepspeed",
        call="deepspeed.initialize()",
        initialization=lambda _imports: (
            "`engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), optimizer=optimizer)`"
        ),
        effect_on_one_process="fails",
        trainers=TRAINERS,
        trainers_initialize=True,
        world_size="dist.get_world_size()",
        pattern=r"\bimport deepspeed\b|\bfrom deepspeed\b|\bdeepspeed\.initialize\b",
    )

    def unavailable(self, options: Any) -> str:
        """Return the remedy if torch or DeepSpeed is not installed, without importing them."""
        if find_spec("deepspeed") is None:
            return "DeepSpeed is not installed in this environment. Run: pip install 'distdl-jupyter[deepspeed]'"
        return super().unavailable(options)

    def modules(self, options: Any) -> tuple[str, ...]:
        """Return torch and DeepSpeed."""
        return ("torch", "deepspeed")

    def packages(self, options: Any) -> tuple[JobPackage, ...]:
        """Return torch and DeepSpeed."""
        return (TORCH, JobPackage("DeepSpeed", "deepspeed"))

    def plan(self, spec: JobSpec, placement: Placement, options: Any) -> Plan:
        """Return torch's plan with the config for every rank. Raises InvalidSpec for a config that cannot work."""
        plan = super().plan(spec, placement, options)
        config = options.build_config()
        if not config:
            return plan
        _check_zero(config)
        is_shared = any(config.get(key) for key in _SHARING_KEYS) or "PipelineModule" in spec.source.code
        batch_text = "" if is_shared else check_batch(config, len(placement.ranks))
        stage = (config.get("zero_optimization") or {}).get("stage", 0)
        note = f"DeepSpeed with ZeRO stage {stage}" + (f": {batch_text}." if batch_text else ".")
        variable = {CONFIG_VARIABLE: json.dumps(config)}
        return Plan(tuple(environment | variable for environment in plan.environments), notes=(*plan.notes, note))


def check_batch(config: Config, ranks: int) -> str:
    """Return the number of samples per step as text, or "" if a value is "auto". Raises InvalidSpec.

    As in DeepSpeed, ``train_batch_size`` is ``train_micro_batch_size_per_gpu`` x ``gradient_accumulation_steps`` x
    ranks, and one or two of these may be missing
    (https://www.deepspeed.ai/docs/config-json/#batch-size-related-parameters).
    """
    sizes = {key: config[key] for key in (_BATCH_KEY, _MICRO_KEY, _STEPS_KEY) if config.get(key) is not None}
    if "auto" in sizes.values():
        return ""
    for key, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _create_error(
                "deepspeed-number-invalid",
                f"{key} is {value!r}, but must be an integer of at least 1.",
                f"Set {key} to an integer of at least 1.",
            )
    batch_size, micro, steps = sizes.get(_BATCH_KEY), sizes.get(_MICRO_KEY), sizes.get(_STEPS_KEY)
    if micro is None:
        if batch_size is None:
            raise _create_error(
                "deepspeed-batch-missing",
                "The DeepSpeed config does not set the batch size.",
                "Set micro_batch to the number of samples per rank.",
            )
        micro = _divide(batch_size, (steps or 1) * ranks, _describe_product(None, steps or 1, ranks))
    if steps is None:
        steps = 1 if batch_size is None else _divide(batch_size, micro * ranks, _describe_product(micro, None, ranks))
    total = micro * steps * ranks
    if batch_size is not None and batch_size != total:
        raise _create_error(
            "deepspeed-batch-differs",
            f"{_BATCH_KEY} is {batch_size}, but {_describe_product(micro, steps, ranks)} is {total}.",
            f"Set {_BATCH_KEY} to {total}, or remove it.",
        )
    return f"{total} samples a step, {_describe_product(micro, steps, ranks)}"


def _divide(batch_size: int, divisor: int, factors: str) -> int:
    if batch_size % divisor:
        lower = batch_size - batch_size % divisor
        suggestion = f"{lower} or {lower + divisor}" if lower else str(divisor)
        raise _create_error(
            "deepspeed-batch-uneven",
            f"{_BATCH_KEY} is {batch_size}, which is not a multiple of {factors}.",
            f"Set {_BATCH_KEY} to {suggestion}.",
        )
    return batch_size // divisor


def _describe_product(micro: int | None, steps: int | None, ranks: int) -> str:
    sizes = [plural(micro, "sample") + " a rank" if micro else "", plural(steps, "batch") + " a step" if steps else ""]
    return " x ".join([*filter(None, sizes), plural(ranks, "rank")])


def _check_zero(config: Config) -> None:
    """Raise InvalidSpec for a config that DeepSpeed would reject on every rank."""
    zero = config.get("zero_optimization") or {}
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise _create_error(
            "deepspeed-stage-invalid",
            f"zero_stage is {stage!r}, but must be 0, 1, 2 or 3.",
            "Set zero_stage to 0, 1, 2 or 3.",
            "zero_stage",
        )
    for key, min_stage in (("offload_optimizer", 1), ("offload_param", 3)):
        device = (zero.get(key) or {}).get("device", "none")
        if device != "none" and stage < min_stage:
            raise _create_error("deepspeed-offload-stage",
                f"{key} needs ZeRO stage {min_stage}, but the stage is {stage}.",
                f"Set zero_stage to {min_stage}, or remove the offload.", "offload",
            )  # fmt: skip
    if all((config.get(kind) or {}).get("enabled") is True for kind in _HALF_FORMATS):
        raise _create_error(
            "deepspeed-two-formats", "The DeepSpeed config enables both bf16 and fp16.", "Disable one of them."
        )


def _to_json(source: str | Config) -> str:
    """Return a config as JSON, or "" if there is none. Raises InvalidSpec."""
    if isinstance(source, str) and source.strip()[:1] not in ("", "{"):
        path = Path(source).expanduser()
        try:
            source = path.read_text("utf-8")
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or "it is not a text file"
            raise _create_error("deepspeed-config-unreadable", f"Cannot read the DeepSpeed config {path}: {problem}.",
                         "Set deepspeed_config to the path of a JSON file, to JSON, or to a "
                         "dict.") from None  # fmt: skip
    try:
        config = json.loads(source or "{}") if isinstance(source, str) else source
        text = json.dumps(config)
    except (TypeError, ValueError) as error:
        raise _create_error(
            "deepspeed-config-not-json",
            f"The DeepSpeed config is not valid JSON: {error}.",
            "Correct the JSON at this line and column.",
        ) from None
    if not isinstance(config, dict):
        raise _create_error(
            "deepspeed-config-not-an-object",
            f"The DeepSpeed config is {type(config).__name__}, but must be a JSON object.",
            'Use an object, for example {"bf16": {"enabled": true}}.',
        )
    return text if config else ""


def _create_error(code: str, problem: str, hint: str, option: str = "deepspeed_config") -> InvalidSpec:
    return InvalidSpec(problem, code=code, field=option, hint=hint)
