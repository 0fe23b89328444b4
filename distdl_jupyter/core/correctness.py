"""Compare the first training steps of all ranks with each other and with a single process that had all samples.

``worker.hooks.check`` records the steps in ``check/rank-<n>.json`` of the job's folder. Each file describes loaders,
layers and weights (``names``, ``shapes``), and has for each step::

    {"batches": [{"loader", "pass", "size", "samples": [hash]}], "inputs": [hash],
     "losses": [number], "random": bool, "unsynced": "", "no_sync" or "forward", "unsynced_line": line, "local": bool,
     "optimizers": [{"index", "rates", "before": [hash], "weights": [sketch], "gradients": [sketch or None],
                     "bits": [hash], "after": [hash], "weights_after": [sketch]}]}

Sketches are linear, so the sketch of a mean gradient is the mean of the sketches. The norm of a difference of tensors
is the norm of the difference of their sketches, to about 25 %.

A line is ``[file or cell, number]``, or ``["", 0]`` if unknown. ``unsynced`` is the reason why the last backward pass
did not average gradients; ``local`` is true if an optimizer stepped inside ``no_sync()``.

The first cause comes first; consequences of another finding are not reported.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from distdl_jupyter.core.humanize import count, listing, plural
from distdl_jupyter.core.table import CodeBlock, Display

Sketch = Sequence[float]
Record = Mapping[str, Any]
#: Step, index and weight names of an optimizer, and the records of all ranks for this step.
Step = tuple[int, str, list[str], list[Record]]
Level = Literal["error", "warning", "info"]
#: Maximum relative difference of equal gradients (due to the order of summation), in single and in half precision.
_TOLERANCE, _HALF_TOLERANCE = 0.02, 0.1
#: Minimum share of the gradient norm that a tensor needs to be compared separately.
_MIN_NORM_SHARE = 1e-4
#: Minimum share of common samples for two ranks to count as equal, and of the data set for a full pass.
_MIN_OVERLAP, _MIN_COVERAGE = 0.5, 0.95


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference: ``text`` describes it, ``remedy`` says how to fix it, ``example`` is the fix as code.

    ``step`` counts from 0; ``tensor`` is the name of a parameter; ``size`` is relative (0.5: by half). ``file`` (a path
    or the name of a cell) and ``line`` locate it in the user's code. A field that does not apply or is unknown is None
    or "".
    """

    level: Level
    code: str
    text: str
    remedy: str = ""
    example: str = ""
    step: int | None = None
    tensor: str = ""
    size: float | None = None
    file: str = ""
    line: int | None = None

    @property
    def location(self) -> str:
        """Return the location in the user's code, such as "train.py, line 12", or "" if it is unknown."""
        return f"{self.file}, line {self.line}" if self.file else ""


@dataclass(slots=True, repr=False)
class Comparison(Display):
    """The result of a comparison, to print or display.

    ``compared`` lists the comparisons that were made, ``left_out`` says why others were not.
    """

    processes: int
    steps: int
    findings: list[Difference] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Return whether steps were compared without an error or a warning."""
        return self.steps > 0 and all(finding.level == "info" for finding in self.findings)

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        if not self.steps:
            return "Nothing could be compared."
        scope = f"in {plural(self.steps, 'step')} of {plural(self.processes, 'rank')}"
        mistakes = [finding for finding in self.findings if finding.level != "info"]
        return f"{plural(len(mistakes), 'mistake')} found {scope}." if mistakes else f"No mistake found {scope}."

    @property
    def notes(self) -> list[str]:
        """Return the comparisons that were made, and why others were not, as sentences."""
        return [*([f"Compared: {'; '.join(self.compared)}."] if self.compared else []), *self.left_out]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**dataclasses.asdict(self), "is_right": self.is_right}

    def _parts(self) -> Iterator[str]:
        yield self.summary
        for finding in self.findings:
            location = f"{finding.location}: " if finding.location else ""
            yield ""
            yield f"{finding.level.capitalize()}: {location}{finding.text}"
            if finding.remedy:
                yield finding.remedy
            if finding.example:
                yield CodeBlock(textwrap.indent(finding.example, "    "))
        if self.findings:
            yield ""
        yield from self.notes


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a job's ranks, in rank order."""
    records = []
    for path in (folder / "check").glob("rank-*.json"):
        try:
            records.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    return sorted(records, key=lambda record: record["rank"])


def note(folder: Path) -> Path:
    """Return the file with the id of the check's single-process run: ``{"single": id}``."""
    return folder / "check" / "single.json"


def single(folder: Path) -> str:
    """Return the id of the single-process run of a job's check, or "" if there is none."""
    try:
        return str(json.loads(note(folder).read_text(encoding="utf-8"))["single"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def compare(ranks: Sequence[Record], reference: Record | None = None) -> Comparison:
    """Compare the records of all ranks with each other and with that of a single process (``reference``)."""
    steps = min((len(rank["steps"]) for rank in ranks), default=0)
    result = Comparison(len(ranks), steps)
    if problem := next((rank["problem"] for rank in ranks if rank.get("problem")), ""):
        result.left_out.append(f"A rank could not be recorded to the end ({problem}).")
    sharded = next((rank["sharded"] for rank in ranks if rank.get("sharded")), "")
    comparer = _Comparer(ranks, reference, result)
    if steps and comparer.find_unconnected_trainer():
        return result
    if steps:
        comparer.compare_data()
    elif not sharded:
        result.left_out.append("No step of a torch optimizer was recorded, so there is nothing to compare.")
        return result
    if sharded:
        result.left_out.append(
            f"The weights are sharded across ranks ({sharded}), so no two ranks hold the same weights. Weights and "
            "gradients were not compared."
        )
    elif not ranks[0].get("shapes") or any(rank.get("shapes") != ranks[0]["shapes"] for rank in ranks):
        result.left_out.append(
            "The optimizers of the ranks hold different weights (as in pipeline or tensor parallel training), so "
            "weights and gradients were not compared."
        )
    else:
        comparer.compare_weights()
    return result


class _Rule(NamedTuple):
    """A type of finding. Its texts are templates with fields in braces.

    ``fixes`` maps a library or a type of loader to its remedy ("" for ``remedy``) and its example.
    """

    code: str
    text: str
    remedy: str = ""
    example: str = ""
    fixes: Mapping[str, tuple[str, str]] = {}
    level: Level = "error"


#: Remedies and examples of several rules. A stream needs a different fix: DataLoader does not accept a sampler for it.
_SHARD_REMEDY = "Give each rank its own part of the data set."
_STREAM_REMEDY = "Let each worker of each rank skip the samples that the others read."
_STREAM_EXAMPLE = (
    "def __iter__(self):\n"
    "    info = torch.utils.data.get_worker_info()\n"
    "    workers, worker = (info.num_workers, info.id) if info else (1, 0)\n"
    "    part, parts = rank * workers + worker, size * workers\n"
    "    return itertools.islice(self.read(), part, None, parts)"
)
_WRAP_EXAMPLE = "model = torch.nn.parallel.DistributedDataParallel(model)"
#: Code that gives each rank different random numbers, by generator.
_SEED_EXAMPLES = {
    "torch": "torch.manual_seed(seed + rank)",
    "random": "random.seed(seed + rank)",
    "numpy": "numpy.random.seed(seed + rank)",
}

_RULES = (
    _Rule(
        "trainer-alone",
        "Lightning's {trainer} uses one process on each rank, so the {ranks} ranks train independently.",
        "Set devices to the number of processes on each node, and num_nodes to the number of nodes.",
        '{trainer}(accelerator="{accelerator}", devices={devices}{nodes}, strategy="ddp")',
    ),
    _Rule(
        "same-samples",
        "The ranks train on the same samples: {same}.",
        _SHARD_REMEDY,
        "sampler = DistributedSampler(dataset, num_replicas=size, rank=rank)\n"
        "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
        {
            "no loader": (_SHARD_REMEDY, "inputs, targets = inputs[rank::size], targets[rank::size]"),
            "stream": (_STREAM_REMEDY, _STREAM_EXAMPLE),
            "Hugging Face": (
                "Give each rank its own part of the data set; the workers of a rank then divide it.",
                "from datasets.distributed import split_dataset_by_node\n"
                "dataset = split_dataset_by_node(dataset, rank=rank, world_size=size)",
            ),
            "equal samplers": (
                "Call init_process_group before you create the sampler, and omit num_replicas and rank.",
                "sampler = DistributedSampler(dataset)",
            ),
            "Accelerate": ("Pass the loader to accelerator.prepare().", "loader = accelerator.prepare(loader)"),
            "Fabric": ("Pass the loader to fabric.setup_dataloaders().", "loader = fabric.setup_dataloaders(loader)"),
        },
    ),
    _Rule(
        "same-samples-in-workers",
        "Each of the {workers} DataLoader workers of a rank reads the whole data set, so each rank trains on every "
        "sample {workers} times.",
        _STREAM_REMEDY,
        _STREAM_EXAMPLE,
    ),
    _Rule(
        "same-augmentation",
        "All ranks use the same random numbers for their samples, so sample k of each rank gets the same augmentation.",
        "Add the rank to the seed after the model is built, so that all ranks still start with the same weights.",
        "{seeds}",
        level="info",
    ),
    _Rule(
        "no-set-epoch",
        "set_epoch of the {sampler} was not called, so all epochs use the same order.",
        "Call sampler.set_epoch(epoch) at the start of each epoch.",
        "for epoch in range(epochs):\n    sampler.set_epoch(epoch)",
        level="warning",
    ),
    _Rule(
        "different-start",
        "The ranks start with different weights: before the first step, {differences}.",
        "Broadcast the weights of rank 0 before the first step, or use the same seed on all ranks.",
        "model = DistributedDataParallel(model)  # broadcasts the weights",
        {"Horovod": ("", "hvd.broadcast_parameters(model.state_dict(), root_rank=0)")},
    ),
    _Rule(
        "no-sync-on-last-backward",
        "The last backward pass before optimizer.step() ran without averaging (no_sync()), so the gradients of step "
        "{step} are not averaged across ranks.",
        "Leave no_sync() before the last micro-batch, including its forward pass.",
        "last = (i + 1) % accumulate == 0\n"
        "with contextlib.nullcontext() if last else model.no_sync():\n"
        "    model(inputs).backward()",
    ),
    _Rule(
        "gradients-not-averaged",
        "Gradients are not averaged across ranks, so each rank trains its own model: in step {step}, {differences}.",
        "Wrap the model in DistributedDataParallel and call the wrapped model.",
        _WRAP_EXAMPLE,
        {
            "Horovod": (
                "Wrap the optimizer in Horovod's DistributedOptimizer.",
                "optimizer = hvd.DistributedOptimizer(\n    optimizer, named_parameters=model.named_parameters()\n)",
            ),
            "Accelerate": (
                "Pass model and optimizer to accelerator.prepare().",
                "model, optimizer = accelerator.prepare(model, optimizer)",
            ),
            "Fabric": (
                "Pass model and optimizer to fabric.setup().",
                "model, optimizer = fabric.setup(model, optimizer)",
            ),
            "no group": (
                "Initialize the process group, wrap the model in DistributedDataParallel and call the wrapped model.",
                f"torch.distributed.init_process_group()\n{_WRAP_EXAMPLE}",
            ),
        },
    ),
    _Rule(
        "weights-depart",
        "From step {step} on, the ranks have different weights although they step with the same gradients: "
        "{differences}. Learning rates: {rates}.",
        "Use the same optimizer settings and optimizer state on all ranks.",
        fixes={"Horovod": ("", "hvd.broadcast_optimizer_state(optimizer, root_rank=0)")},
    ),
    _Rule(
        "loss-no-mean",
        "The loss is a sum over samples, not their mean: in step {step} it is {alone} for all samples and {mean} on "
        "average per rank. Averaged across ranks, gradients are 1/{ranks} of those of a single process, and change "
        "with the number of processes.",
        "Average the loss over the samples, or sum gradients across ranks.",
        'loss = torch.nn.functional.cross_entropy(output, target, reduction="mean")',
        level="warning",
    ),
    _Rule(
        "gradients-summed",
        "Gradients are summed across ranks instead of averaged: in step {step}, all are {ranks} times those of a "
        "single process with the same samples.",
        "Divide the sum by the number of ranks, or use the average.",
        "dist.all_reduce(p.grad)\np.grad /= dist.get_world_size()",
        {"Horovod": ("", "optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Average)")},
    ),
    _Rule(
        "gradients-scaled",
        "Gradients in step {step} are {factor} times those of a single process with the same samples. The mean loss of "
        "the ranks is {mean}, the loss of the single process {alone}.",
        "Average the loss over each rank's samples, and average gradients across ranks.",
        level="warning",
    ),
    _Rule(
        "gradients-differ",
        "In step {step}, gradients differ by {rest} from those of a single process with the same samples and weights, "
        "most in {worst} ({gap}).",
        "Check what a rank does with its samples or gradients that a single process does not.",
    ),
    _Rule(
        "batch-norm",
        "{layers} computes its statistics from each rank's own samples, so in step {step} gradients differ by {rest} "
        "from a single process, most in {worst}. This is expected.",
        "If each rank has few samples, synchronize the statistics.",
        "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",
        level="info",
    ),
    _Rule(
        "rate-not-scaled",
        "The learning rate is {rate}, the same on {ranks} processes as on one, but each step has {more} times the "
        "samples.",
        "The linear scaling rule (Goyal et al., 2017) suggests {scaled}, after a warm-up.",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * world_size)",
        level="info",
    ),
)
_RULES_BY_CODE = {rule.code: rule for rule in _RULES}


class _Comparer:
    """Adds findings to a comparison, except consequences of other findings."""

    def __init__(self, ranks: Sequence[Record], reference: Record | None, comparison: Comparison) -> None:
        self._ranks, self._reference, self._result = ranks, reference or {}, comparison
        self._rank_0 = ranks[0] if ranks else {}
        self._rank_count, self._step_count = len(ranks), comparison.steps
        is_half = any("16" in kind for rank in ranks for kind in rank.get("dtypes", ()))
        self._tolerance = _HALF_TOLERANCE if is_half else _TOLERANCE
        self._trainer: Record = self._rank_0.get("trainer") or {}
        #: Adds the reason why something was not compared.
        self._leave_out = comparison.left_out.append
        #: Returns the line of the last "forward", "backward" or "step" of rank 0.
        self._line = self._rank_0.get("lines", {}).get
        #: The training library as a key of ``_Rule.fixes``, "" for plain torch.
        self._library = "no group" if self._rank_0.get("group") == 0 else ""
        if any(rank.get("horovod") for rank in ranks):
            self._library = "Horovod"
        elif self._rank_0.get("accelerate"):
            self._library = "Accelerate"
        elif self._trainer.get("name") == "Fabric":
            self._library = "Fabric"

    def _add(self, code: str, line: Any = None, *, fix: str = "", **fields: Any) -> None:
        """Add a finding. ``line`` is the recorded line of the user's code; ``fields`` fill the templates of its rule.

        ``step``, ``tensor`` and ``size`` are also fields of the finding.
        """
        rule, fields = _RULES_BY_CODE[code], {"step": None, "ranks": count(self._rank_count), **fields}
        remedy, example = rule.fixes.get(fix or self._library, ("", rule.example))
        text, remedy, example = (part.format_map(fields) for part in (rule.text, remedy or rule.remedy, example))
        file, number = line or ("", 0)
        details: dict[str, Any] = {name: fields[name] for name in ("step", "tensor", "size") if name in fields}
        details |= {"file": file, "line": number or None}
        self._result.findings.append(Difference(rule.level, code, text, remedy, example, **details))

    def find_unconnected_trainer(self) -> bool:
        """Report a trainer with a single process on each rank, which explains all else; return whether there is one."""
        trainer = self._trainer
        if trainer.get("size") != 1:
            return False
        nodes = self._rank_count // trainer["devices"]
        fields = {"trainer": trainer["name"], "nodes": f", num_nodes={nodes}" if nodes > 1 else ""}
        self._add(
            "trainer-alone", trainer["line"], accelerator=trainer["accelerator"], devices=trainer["devices"], **fields
        )
        return True

    # samples ------------------------------------------------------------------------------------

    def compare_data(self) -> None:
        """Compare the samples of the ranks, and their workers, random numbers and order."""
        #: By loader: the batches on which rank 0 has trained, and the records of all ranks.
        loaders: dict[str, tuple[list[Record], list[Record]]] = {
            name: (
                [batch for step in self._rank_0["steps"] for batch in step["batches"] if str(batch["loader"]) == name],
                [rank.get("loaders", {}).get(name, {}) for rank in self._ranks],
            )
            for name in self._rank_0.get("loaders", {})
        }
        if not self._compare_samples(loaders):
            for batches, (info, *_) in loaders.values():
                if _is_read_repeatedly(info, batches):
                    self._add("same-samples-in-workers", info.get("line"), workers=count(info["workers"]))
                    break
        active_loaders = [records for batches, records in loaders.values() if batches]
        self._compare_augmentation(active_loaders)
        for info, *_ in active_loaders:
            epochs = info.get("epochs", [])
            is_repeated = len(epochs) > 1 and epochs[0] == epochs[1]
            is_unset = len(epochs) == 1 and not info.get("set_epoch") and not self._trainer
            if info.get("shuffles") and (is_repeated or is_unset):
                self._add("no-set-epoch", info.get("loop_line"), sampler=info["sampler"])

    def _compare_samples(self, loaders: Mapping[str, tuple[list[Record], list[Record]]]) -> bool:
        """Find ranks that train on the same samples; return whether there are any."""
        steps = [[_get_samples(rank["steps"][step]) for rank in self._ranks] for step in range(self._step_count)]
        for step, rank_samples in enumerate(steps):
            for (rank_a, samples_a), (rank_b, samples_b) in itertools.combinations(enumerate(rank_samples), 2):
                shared = len({*samples_a} & {*samples_b})
                if not shared or _has_repeats(samples_a) or _has_repeats(samples_b):
                    continue
                if shared >= _MIN_OVERLAP * min(len({*samples_a}), len({*samples_b})):
                    text = (
                        f"{count(shared)} of {count(len({*samples_a}))} samples of ranks {rank_a} and {rank_b} in step "
                        f"{step} are identical"
                    )
                    loader = next((str(batch["loader"]) for batch in self._rank_0["steps"][step]["batches"]), "")
                    batches_and_records = loaders.get(loader, ([], [{}])) if loader else None
                    self._add_same_samples(text, batches_and_records, step=step, size=shared / len({*samples_a}))
                    return True
        if any(_has_repeats(_get_samples(step)) for rank in self._ranks for step in rank["steps"]):
            self._leave_out(
                "Many samples of a rank are equal to each other, so samples were not compared between ranks."
            )
        elif not any(all(rank_samples) for rank_samples in steps):
            self._leave_out("No samples were recorded on any rank, so samples were not compared.")
        else:
            self._result.compared.append("the samples of each step (no two ranks train on the same one)")
            for name, (batches, records) in loaders.items():
                if length := self._find_whole_pass(name, batches, records):
                    text = (
                        f"each rank iterates over all {count(length)} samples of the data set in its own order, so an "
                        f"epoch trains on every sample {count(self._rank_count)} times"
                    )
                    self._add_same_samples(text, (batches, records))
                    return True
        return False

    def _find_whole_pass(self, loader: str, batches: Sequence[Record], records: Sequence[Record]) -> int:
        """Return the length of the data set if each rank iterates over all of it in its own order, else 0."""
        length = int(records[0].get("samples") or 0)
        size = max((batch["size"] for batch in batches), default=0)
        is_whole = all((info.get("batches") or 0) * size >= _MIN_COVERAGE * (length or 1) for info in records)
        if not length or not is_whole or any(info.get("samples") != length for info in records):
            return 0
        rank_samples = [
            {
                sample
                for step in rank["steps"]
                for batch in step["batches"]
                if str(batch["loader"]) == loader
                for sample in batch["samples"]
            }
            for rank in self._ranks
        ]
        # Two ranks that draw from the same data set have len * len / length samples in common on average.
        has_overlap = any(
            len(samples & other) >= max(1.0, len(samples) * len(other) / length / 2)
            for samples, other in itertools.combinations(rank_samples, 2)
        )
        orders = [info.get("read") or [] for info in records]
        return length if has_overlap or (orders[0] and all(order == orders[0] for order in orders)) else 0

    def _add_same_samples(self, text: str, loader: tuple[list[Record], list[Record]] | None, **fields: Any) -> None:
        """Report that ranks train on the same samples, with the remedy for their type of loader."""
        batches, records = loader or ([], [{}])
        info, parts = records[0], [record.get("part") or (None, None) for record in records]
        if _is_read_repeatedly(info, batches):
            text += f"; so do the {count(info['workers'])} workers of each rank's DataLoader"
        fix = "" if loader else "no loader"
        if info.get("iterable"):
            fix = "Hugging Face" if info.get("hugging_face") else "stream"
        elif info.get("sampler") == "DistributedSampler" and len(set(map(repr, parts))) < self._rank_count:
            fix = "equal samplers"
            text += f"; the DistributedSampler has rank {parts[0][1]} of {parts[0][0]} on more than one of them"
        self._add("same-samples", info.get("line") or self._line("forward"), fix=fix, same=text, **fields)

    def _compare_augmentation(self, loaders: Iterable[Sequence[Record]]) -> None:
        """Find loaders whose samples all ranks augment with the same random numbers."""
        for records in loaders:
            info, has_workers = records[0], bool(records[0].get("workers"))
            states = [record.get("random") or {} for record in records]
            generators = [
                name
                for name in info.get("draws") or ()
                if (source := "workers" if has_workers else name) in states[0]
                and len({state.get(source) for state in states}) == 1
            ]
            if generators:
                # Workers derive the seeds of all generators from torch's seed.
                seeds = "\n".join(_SEED_EXAMPLES[name] for name in (["torch"] if has_workers else generators))
                self._add("same-augmentation", info.get("line"), seeds=seeds)
                return

    # weights and gradients of the ranks -----------------------------------------------------------

    def compare_weights(self) -> None:
        """Compare weights and gradients across ranks and with a single process."""
        optimizers, lines, is_same_start = list(self._iter_optimizer_steps()), self._rank_0.get("made", {}), True
        for step, index, names, records in optimizers:
            if step == 0 and is_same_start and (indices := _find_different([record["before"] for record in records])):
                is_same_start = False
                fields = _format_spread(names, records, "weights", indices)
                self._add("different-start", lines.get(index), step=0, **fields)
        if is_same_start:
            self._result.compared.append("the weights before the first step (bitwise identical on all ranks)")
        is_averaged = self._compare_gradients(optimizers)
        for step, index, names, records in optimizers if is_averaged and is_same_start else ():
            # The first step after which weights differ although the gradients were the same.
            if indices := _find_different([record.get("after", record["before"]) for record in records]):
                fields = _format_spread(names, records, "weights_after", indices)
                rates = listing([_format_number(rate) for rate in sorted({record["rates"][0] for record in records})])
                self._add("weights-depart", lines.get(index), step=step, rates=rates, **fields)
                break
        if not self._reference:
            self._leave_out("No single process trained on all samples, so sums and means could not be distinguished.")
            return
        if reason := self._explain_incomparable() if is_same_start else "the ranks started with different weights":
            self._leave_out(f"Losses and gradients were not compared with one process: {reason}.")
        elif is_averaged:
            self._compare_scale(optimizers)
        if layers := self._rank_0.get("layers"):
            self._leave_out(
                f"Batch statistics ({listing(layers)}) are computed from each rank's own samples, as expected."
            )
        self._compare_rates()

    def _iter_optimizer_steps(self) -> Iterator[Step]:
        for step in range(self._step_count):
            for index in (optimizer["index"] for optimizer in self._rank_0["steps"][step]["optimizers"]):
                entries = [entry for rank in self._ranks for entry in rank["steps"][step]["optimizers"]
                           if entry["index"] == index]  # fmt: skip
                if len(entries) == self._rank_count:
                    yield step, str(index), self._rank_0["names"][str(index)], entries

    def _compare_gradients(self, optimizers: Sequence[Step]) -> bool:
        """Find gradients that differ across ranks. Return whether all ranks step with the same gradients."""
        for position, (step, index, names, records) in enumerate(optimizers):
            tensors = [tensor for tensor in range(len(names)) if _has_different_gradients(records, tensor)]
            if not tensors:
                continue
            steps = [rank["steps"][step] for rank in self._ranks]
            later = [entries for _, key, _, entries in optimizers[position + 1 :] if key == index]
            hashes_after = [record.get("after") or [] for record in records]
            hashes_before = [record["before"] for record in records]
            fields = _format_spread(names, records, "gradients", tensors)
            if any(record.get("local") for record in steps):
                self._leave_out(
                    "The optimizer steps inside no_sync(), as in local SGD, so gradients were not compared. If no step "
                    "runs outside no_sync(), each rank trains its own model."
                )
            elif (
                (all(hashes_after) and not _find_different(hashes_before) and not _find_different(hashes_after))
                or any(rank.get("averages_weights") for rank in self._ranks)
                or any(not _find_different([record["before"] for record in entries]) for entries in later)
            ):
                self._leave_out(
                    "The ranks step with different gradients but have the same weights after the step or some steps "
                    "later, so the weights are averaged there and gradients were not compared."
                )
            elif (unsynced := next((record for record in steps if record.get("unsynced")), None)) is not None:
                self._add("no-sync-on-last-backward", unsynced["unsynced_line"], step=step, **fields)
            else:
                line = self._rank_0.get("made", {}).get(index) if self._library == "Horovod" else self._line("backward")
                self._add("gradients-not-averaged", line, step=step, **fields)
            return False
        self._result.compared.append("the gradients of each step (identical on all ranks)")
        return True

    # one process --------------------------------------------------------------------------------

    def _explain_incomparable(self) -> str:
        """Return why the first step cannot be compared with that of the single process, or ""."""
        if not self._reference.get("steps"):
            return "the single process made no step"
        if problem := self._reference.get("replay_problem") or self._reference.get("problem"):
            return str(problem)
        if self._reference.get("shapes") != self._rank_0.get("shapes"):
            return "the optimizer of the single process has other weights"
        steps = [rank["steps"][0] for rank in self._ranks]
        single = self._reference["steps"][0]
        if any(step["random"] for step in (*steps, single)):
            return "the model draws random numbers (for example dropout), which differ from run to run"
        if len({len(_get_samples(step)) for step in steps}) > 1:
            return "the ranks have batches of different sizes but average them as if they were equal"
        if not self._has_same_batches(0):
            if not single["batches"]:
                return "the training code creates its own batches, and the single process creates other batches"
            return "the single process had other samples"
        if [entry["before"] for entry in single["optimizers"]] != [entry["before"] for entry in steps[0]["optimizers"]]:
            return "the single process started with other weights (set a seed to compare them)"
        return ""

    def _has_same_batches(self, step: int) -> bool:
        """Return whether the single process had the samples of all ranks in a step, and all ranks had equally many."""
        samples = [_get_samples(rank["steps"][step]) for rank in self._ranks]
        all_samples = sorted(itertools.chain.from_iterable(samples))
        return len(set(map(len, samples))) == 1 and all_samples == sorted(_get_samples(self._reference["steps"][step]))

    def _compare_scale(self, optimizers: Sequence[Step]) -> None:
        """Compare the gradients with those of the single process."""
        single = self._reference["steps"]
        steps = [step for step in range(min(self._step_count, len(single))) if self._has_same_batches(step)]
        for step, index, names, records in optimizers:
            match = (
                [entry for entry in single[step]["optimizers"] if str(entry["index"]) == index] if step in steps else []
            )
            if not match or single[step]["random"] or any(entry["before"] != match[0]["before"] for entry in records):
                continue
            ours, reference = records[0]["gradients"], match[0]["gradients"]
            factor, residual = _fit_factor(ours, reference)
            if residual > self._tolerance:
                self._add_residual(step, names, ours, reference, residual)
                return
            if abs(factor - 1) > self._tolerance:
                self._add_factor(step, names[0], factor)
                return
        self._result.compared.append(
            "losses and gradients with a single process that had the samples of all ranks, in "
            f"{plural(len(steps), 'step')} (identical)"
        )

    def _add_factor(self, step: int, tensor: str, factor: float) -> None:
        single_loss = sum(self._reference["steps"][step]["losses"])
        mean = statistics.fmean(sum(rank["steps"][step]["losses"]) for rank in self._ranks)
        is_sum = single_loss and abs(mean * self._rank_count / single_loss - 1) < 0.05
        if is_sum and abs(factor * self._rank_count - 1) < self._tolerance * self._rank_count:
            code = "loss-no-mean"
        else:
            code = "gradients-summed" if abs(factor / self._rank_count - 1) < self._tolerance else "gradients-scaled"
        fields = {"alone": _format_number(single_loss), "mean": _format_number(mean), "factor": _format_number(factor)}
        self._add(code, self._line("backward"), step=step, tensor=tensor, size=abs(factor - 1), **fields)

    def _add_residual(
        self, step: int, names: Sequence[str], ours: Sequence[Any], single: Sequence[Any], residual: float
    ) -> None:
        gaps = {i: _relative_distance(ours[i], single[i]) for i in range(len(names)) if ours[i] and single[i]}
        # Differences in tiny tensors are mostly rounding errors.
        large = {i: gap for i, gap in gaps.items() if _norm([single[i]]) > _MIN_NORM_SHARE * _norm(single)} or gaps
        worst = max(large, key=lambda i: large[i])
        fields = {"rest": _format_percent(residual), "worst": names[worst], "gap": _format_percent(large[worst])}
        layers = listing(self._rank_0.get("layers", []))
        code, line = ("batch-norm", "forward") if layers else ("gradients-differ", "step")
        self._add(code, self._line(line), step=step, tensor=names[worst], size=residual, layers=layers, **fields)

    def _compare_rates(self) -> None:
        """Find a learning rate that was not scaled although the global batch is larger."""
        if not self._reference.get("steps") or self._result.findings:
            return
        rates = [
            [optimizer["rates"][0] for optimizer in record["steps"][0]["optimizers"]]
            for record in (self._rank_0, self._reference)
        ]
        sizes = [info["own_size"] for info in self._reference.get("loaders", {}).values() if info.get("own_size")]
        batch_size = sizes[0] if sizes else len(_get_samples(self._reference["steps"][0]))
        ratio = sum(len(_get_samples(rank["steps"][0])) for rank in self._ranks) / batch_size if batch_size else 1.0
        if rates[0] and rates[0] == rates[1] and rates[0][0] and ratio > 1.5:
            values = {"rate": rates[0][0], "scaled": rates[0][0] * ratio, "more": ratio}
            line = next(iter(self._rank_0.get("made", {}).values()), None)
            self._add("rate-not-scaled", line, **{name: _format_number(value) for name, value in values.items()})


def _is_read_repeatedly(info: Record, batches: Sequence[Record]) -> bool:
    """Return whether two workers of rank 0 have read the same batch of a stream."""
    if not info.get("iterable") or info.get("workers", 0) < 2:
        return False
    hashes = [batch["samples"] for batch in batches if batch["pass"] == 0]
    hashes = [samples for samples in hashes if samples and not _has_repeats(samples)]
    return any(first == second for first, second in itertools.combinations(hashes, 2))


def _find_different(digests: Sequence[Sequence[str]]) -> list[int]:
    """Return the indices of the tensors whose digests differ across ranks."""
    return [index for index, values in enumerate(zip(*digests, strict=True)) if len(set(values)) > 1]


def _format_spread(names: Sequence[str], records: Sequence[Record], key: str, indices: Sequence[int]) -> dict[str, Any]:
    """Return how tensors differ from rank 0 as ``differences``; ``tensor`` and ``size`` are those of the largest."""
    sizes = {
        i: max(_relative_distance(records[0][key][i] or [0.0], record[key][i] or [0.0]) for record in records[1:])
        for i in indices
    }
    worst = max(indices, key=lambda i: sizes[i])
    text = f"{names[worst]} differs"
    if len(indices) > 1:
        share = "all" if len(indices) == len(names) else f"{count(len(indices))} of"
        text = f"{share} {count(len(names))} tensors differ, most in {names[worst]},"
    return {"differences": f"{text} by {_format_percent(sizes[worst])}", "tensor": names[worst], "size": sizes[worst]}


def _get_samples(step: Record) -> list[str]:
    """Return the hashes of a step's samples: of its batches, or of the model's inputs if no batch was recorded."""
    return [sample for batch in step["batches"] for sample in batch["samples"]] or list(step["inputs"])


def _has_repeats(samples: Sequence[str]) -> bool:
    """Return whether hashes cannot distinguish samples: most occur more than once on the same rank."""
    return len(samples) > 1 and len(set(samples)) <= len(samples) / 2


def _format_number(value: float) -> str:
    return f"{value:.4g}"


def _format_percent(size: float) -> str:
    return f"{100 * size:.3g} %" if size < 10 else f"{size:.3g} times"


# sketches -----------------------------------------------------------------------------------------


def _subtract(sketch: Sketch, other: Sketch, factor: float = 1.0) -> list[float]:
    return [a - factor * b for a, b in zip(sketch, other, strict=True)] if len(sketch) == len(other) else list(sketch)


def _norm(sketches: Iterable[Sketch | None]) -> float:
    """Return the combined norm of some tensors."""
    return math.sqrt(math.fsum(value * value for sketch in sketches if sketch for value in sketch))


def _relative_distance(sketch: Sketch, other: Sketch) -> float:
    """Return the norm of the difference, relative to the larger of both norms."""
    return _norm([_subtract(sketch, other)]) / (max(_norm([sketch]), _norm([other])) or 1.0)


def _has_different_gradients(records: Sequence[Record], index: int) -> bool:
    """Return whether the gradients of a tensor differ across ranks by more than rounding."""
    if len({record["bits"][index] for record in records}) == 1:
        return False
    values = [record["gradients"][index] for record in records]
    if any(value is None for value in values):
        return True
    max_norm = max(_norm(record["gradients"]) for record in records)
    gap = max(_norm([_subtract(values[0], value)]) for value in values[1:])
    return gap > max(1e-5 * max(_norm([value]) for value in values), 1e-9 * max_norm)


def _fit_factor(ours: Sequence[Sketch | None], single: Sequence[Sketch | None]) -> tuple[float, float]:
    """Return the factor that best scales the single process's gradients to the ranks', and the relative residual."""
    pairs = [(a, b) for a, b in zip(ours, single, strict=True) if a and b]
    dot = math.fsum(x * y for a, b in pairs for x, y in zip(a, b, strict=True))
    square = math.fsum(y * y for _, b in pairs for y in b)
    if not square:
        return 1.0, 0.0 if not _norm(ours) else 1.0
    factor = dot / square
    residual = _norm([_subtract(a, b, factor) for a, b in pairs])
    return factor, residual / (_norm(ours) or 1.0)
