"""DeepSpeed: ranks meet as torch's do, and ``deepspeed.initialize()`` finds the config that the job was given.

The config is DeepSpeed's own (https://www.deepspeed.ai/docs/config-json/); a few options stand for the keys that people
change most. What can be known to fail is refused before the start: a batch that does not add up, a stage that there
is not, an offload that needs another stage.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from distdl_jupyter.backends.torch import TorchBackend, TorchOptions
from distdl_jupyter.backends.usage import TORCH, TRAINERS, Package, Usage
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.plan import Placement, Plan

if TYPE_CHECKING:
    from distdl_jupyter.core.spec import JobSpec

Config = dict[str, Any]
#: Where ranks find their config, as JSON.
VARIABLE = "DISTDL_DEEPSPEED_CONFIG"
_BATCH, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_OFFLOADS = {"optimizer": ("offload_optimizer",), "optimizer and parameters": ("offload_optimizer", "offload_param")}
#: Keys of configs whose ranks share a batch, so that there are fewer batches than ranks.
_SHARES = ("tensor_parallel", "sequence_parallel_size", "mesh_param")


@dataclass(frozen=True, slots=True)
class DeepSpeedOptions(TorchOptions):
    """Settings of the deepspeed backend; each of the small ones goes before what the config says."""

    deepspeed_config: str | dict[str, Any] = field(
        default="", metadata={"help": "DeepSpeed config: a file, JSON or a dict; empty if the code has its own"}
    )
    zero_stage: int | None = field(
        default=None,
        metadata={
            "help": "what is sharded across ranks: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters"
        },
    )
    offload: str = field(
        default="",
        metadata={"help": "what to offload from the GPU to host memory", "choices": ("", *_OFFLOADS)},
    )
    micro_batch: int | None = field(default=None, metadata={"help": "samples per rank and micro-batch"})
    gradient_accumulation: int | None = field(default=None, metadata={"help": "micro-batches per step"})
    precision: str = field(
        default="", metadata={"help": "number format for training", "choices": ("", "fp32", "bf16", "fp16")}
    )

    def __post_init__(self) -> None:
        """Read the config, so that a job keeps what its file held. Raises InvalidSpec."""
        object.__setattr__(self, "deepspeed_config", _text(self.deepspeed_config))

    def config(self) -> Config:
        """Return the whole config, {} where nothing was chosen. Raises InvalidSpec."""
        config: Config = json.loads(str(self.deepspeed_config) or "{}")
        zero = dict(config.get("zero_optimization") or {})
        if self.zero_stage is not None:
            zero["stage"] = self.zero_stage
        for key in _OFFLOADS.get(self.offload, ()):
            zero[key] = {**(zero.get(key) or {}), "device": "cpu"}
        if self.offload:
            # The optimizer of the code is taken as it is; DeepSpeed would insist on its own.
            config.setdefault("zero_force_ds_cpu_optimizer", False)
        if zero:
            config["zero_optimization"] = zero
            config.setdefault("zero_allow_untested_optimizer", True)
        if self.precision:
            config |= {kind: {**(config.get(kind) or {}), "enabled": self.precision == kind} for kind in _HALVES}
        sizes = {_MICRO: self.micro_batch, _STEPS: self.gradient_accumulation}
        return config | {key: value for key, value in sizes.items() if value is not None}


_HALVES = ("bf16", "fp16")


class DeepSpeedBackend(TorchBackend):
    """torch.distributed, with a config for ``deepspeed.initialize()``."""

    name = "deepspeed"
    Options = DeepSpeedOptions
    labels: ClassVar[dict[str, dict[str, Any]]] = {"deepspeed": {}}
    aliases: ClassVar[dict[str, str]] = {}
    replaces: ClassVar[dict[str, str]] = {"deepspeed": "deepspeed"}
    order = 3
    usage = Usage(
        title="DeepSpeed",
        meets=("initialize", "init_distributed"),
        package="deepspeed",
        call="deepspeed.initialize()",
        begin=lambda _imports: (
            "`engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), optimizer=optimizer)`"
        ),
        alone="fails",
        trainers=TRAINERS,
        trainers_meet=True,
        world_size="dist.get_world_size()",
        words=r"\bimport deepspeed\b|\bfrom deepspeed\b|\bdeepspeed\.initialize\b",
    )

    def unavailable(self, options: Any) -> str:
        """Torch and DeepSpeed must be installed; they are looked for without importing them."""
        if find_spec("deepspeed") is None:
            return "DeepSpeed is not installed in this environment. Run: pip install 'distdl-jupyter[deepspeed]'"
        return super().unavailable(options)

    def modules(self, options: Any) -> tuple[str, ...]:
        """Return torch and DeepSpeed."""
        return ("torch", "deepspeed")

    def packages(self, options: Any) -> tuple[Package, ...]:
        """Return torch and DeepSpeed."""
        return (TORCH, Package("DeepSpeed", "deepspeed"))

    def plan(self, spec: JobSpec, placement: Placement, options: Any) -> Plan:
        """Meet as torch's ranks do; every rank has the config. Raises InvalidSpec where it cannot work."""
        plan = super().plan(spec, placement, options)
        config = options.config()
        if not config:
            return plan
        _check(config)
        shared = any(config.get(key) for key in _SHARES) or "PipelineModule" in spec.source.code
        batch = "" if shared else check_batch(config, len(placement.ranks))
        stage = (config.get("zero_optimization") or {}).get("stage", 0)
        note = f"DeepSpeed with ZeRO stage {stage}" + (f": {batch}." if batch else ".")
        variable = {VARIABLE: json.dumps(config)}
        return Plan(tuple(environment | variable for environment in plan.environments), notes=(*plan.notes, note))


def check_batch(config: Config, ranks: int) -> str:
    """Return how many samples a step has, in words; "" where a value is "auto".

    What is missing is what DeepSpeed makes of it: ``train_batch_size`` is ``train_micro_batch_size_per_gpu`` x
    ``gradient_accumulation_steps`` x ranks, of which one or two may be left out
    (https://www.deepspeed.ai/docs/config-json/#batch-size-related-parameters). Raises InvalidSpec.
    """
    sizes = {key: config[key] for key in (_BATCH, _MICRO, _STEPS) if config.get(key) is not None}
    if "auto" in sizes.values():
        return ""
    for key, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _wrong(
                "deepspeed-number-invalid",
                f"{key} is {value!r}, but must be an integer of at least 1.",
                f"Set {key} to an integer of at least 1.",
            )
    whole, micro, steps = sizes.get(_BATCH), sizes.get(_MICRO), sizes.get(_STEPS)
    if micro is None:
        if whole is None:
            raise _wrong(
                "deepspeed-batch-missing",
                "The DeepSpeed config does not set the batch size.",
                "Set micro_batch to the number of samples per rank.",
            )
        micro = _share(whole, (steps or 1) * ranks, _in_words(None, steps or 1, ranks))
    if steps is None:
        steps = 1 if whole is None else _share(whole, micro * ranks, _in_words(micro, None, ranks))
    total = micro * steps * ranks
    if whole is not None and whole != total:
        raise _wrong(
            "deepspeed-batch-differs",
            f"{_BATCH} is {whole}, but {_in_words(micro, steps, ranks)} is {total}.",
            f"Set {_BATCH} to {total}, or remove it.",
        )
    return f"{total} samples a step, {_in_words(micro, steps, ranks)}"


def _share(whole: int, parts: int, factors: str) -> int:
    if whole % parts:
        less = whole - whole % parts
        near = f"{less} or {less + parts}" if less else str(parts)
        raise _wrong(
            "deepspeed-batch-uneven",
            f"{_BATCH} is {whole}, which is not a multiple of {factors}.",
            f"Set {_BATCH} to {near}.",
        )
    return whole // parts


def _in_words(micro: int | None, steps: int | None, ranks: int) -> str:
    sizes = [plural(micro, "sample") + " a rank" if micro else "", plural(steps, "batch") + " a step" if steps else ""]
    return " x ".join([*filter(None, sizes), plural(ranks, "rank")])


def _check(config: Config) -> None:
    """Refuse what DeepSpeed would refuse on every rank. Raises InvalidSpec."""
    zero = config.get("zero_optimization") or {}
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise _wrong(
            "deepspeed-stage-invalid",
            f"zero_stage is {stage!r}, but must be 0, 1, 2 or 3.",
            "Set zero_stage to 0, 1, 2 or 3.",
            "zero_stage",
        )
    for key, least in (("offload_optimizer", 1), ("offload_param", 3)):
        device = (zero.get(key) or {}).get("device", "none")
        if device != "none" and stage < least:
            raise _wrong("deepspeed-offload-stage",
                f"{key} needs ZeRO stage {least}, but the stage is {stage}.",
                f"Set zero_stage to {least}, or remove the offload.", "offload",
            )  # fmt: skip
    if all((config.get(kind) or {}).get("enabled") is True for kind in _HALVES):
        raise _wrong(
            "deepspeed-two-formats", "The DeepSpeed config enables both bf16 and fp16.", "Disable one of them."
        )


def _text(source: str | Config) -> str:
    """Return a config as JSON, "" for none. Raises InvalidSpec."""
    if isinstance(source, str) and source.strip()[:1] not in ("", "{"):
        path = Path(source).expanduser()
        try:
            source = path.read_text("utf-8")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is not a text file"
            raise _wrong("deepspeed-config-unreadable", f"Cannot read the DeepSpeed config {path}: {why}.",
                         "Set deepspeed_config to the path of a JSON file, to JSON, or to a "
                         "dict.") from None  # fmt: skip
    try:
        config = json.loads(source or "{}") if isinstance(source, str) else source
        text = json.dumps(config)
    except (TypeError, ValueError) as error:
        raise _wrong(
            "deepspeed-config-not-json",
            f"The DeepSpeed config is not valid JSON: {error}.",
            "Correct the JSON at this line and column.",
        ) from None
    if not isinstance(config, dict):
        raise _wrong(
            "deepspeed-config-not-an-object",
            f"The DeepSpeed config is {type(config).__name__}, but must be a JSON object.",
            'Example: {"bf16": {"enabled": true}}.',
        )
    return text if config else ""


def _wrong(code: str, problem: str, hint: str, option: str = "deepspeed_config") -> InvalidSpec:
    return InvalidSpec(problem, code=code, field=option, hint=hint)
