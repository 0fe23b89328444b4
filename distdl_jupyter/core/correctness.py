"""Compare the first training steps of all ranks with each other and with a single process that had all samples.

``worker.hooks.check`` records the steps in ``check/rank-<n>.json`` of the job's folder. Each file describes loaders,
layers and weights (``names``, ``shapes``), and has for each step::

    {"batches": {loader: {"pass": number, "samples": [hash]}}, "inputs": [hash], "random": bool,
     "unsynced": line or None, "local": bool,
     "optimizers": {optimizer: {"rate": number, "before": [tensor], "gradients": [tensor], "after": [tensor]}}}

A tensor is ``[hash, sketch]``; a missing gradient counts as zero. Sketches are linear, so the sketch of a mean
gradient is the mean of the sketches. The norm of a difference of tensors is the norm of the difference of their
sketches, to about 25 %. A line is ``[file or cell, number]``, or ``["", 0]`` if it is unknown. ``unsynced`` is the line
that kept the last backward pass from averaging gradients; ``local`` is true if an optimizer stepped inside
``no_sync()``. Only the first cause is reported, not its consequences.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distdl_jupyter.core.errors import Level
from distdl_jupyter.core.humanize import CodeBlock, Display, count, listing, plural

Record = Mapping[str, Any]
#: The file with the id of a check's single-process run: ``{"single": id}``.
SINGLE_RUN_FILE = "check/single.json"
#: Maximum relative difference of equal gradients (due to the order of summation), and the same in half precision.
_TOLERANCE, _HALF_TOLERANCE = 0.02, 0.1
#: Maximum relative difference of the gradients of two ranks that average them.
_ROUNDING = 1e-5
#: Minimum share of common samples for the samples of two ranks to count as the same.
_MIN_OVERLAP = 0.5
#: Minimum share of the data set for a pass over a loader to count as a pass over the whole data set.
_MIN_COVERAGE = 0.95


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference: ``text`` describes it, ``remedy`` says how to fix it, ``example`` is the fix as code.

    ``step`` counts from 0; ``size`` is relative (0.5: by half). ``file`` (a path or the name of a cell) and ``line``
    locate it in the user's code. A field that does not apply or is unknown is None or "".
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


@dataclass(slots=True, repr=False)
class Comparison(Display):
    """The result: ``compared`` lists the comparisons that were made, ``left_out`` says why others were not."""

    processes: int
    steps: int
    findings: list[Difference] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether steps were compared without an error or a warning."""
        return self.steps > 0 and all(finding.level == "info" for finding in self.findings)

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        if not self.steps:
            return "Nothing could be compared."
        mistakes = sum(finding.level != "info" for finding in self.findings)
        subject = plural(mistakes, "mistake") if mistakes else "No mistake"
        return f"{subject} found in {plural(self.steps, 'step')} of {plural(self.processes, 'rank')}."

    @property
    def notes(self) -> list[str]:
        """Sentences about the comparisons that were made, and why others were not."""
        return [*([f"Compared: {'; '.join(self.compared)}."] if self.compared else []), *self.left_out]

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {**dataclasses.asdict(self), "is_right": self.is_right}

    def _parts(self) -> Iterator[str]:
        yield self.summary
        for finding in self.findings:
            location = f"{finding.file}, line {finding.line}: " if finding.file else ""
            yield from ("", f"{finding.level.capitalize()}: {location}{finding.text}", finding.remedy)
            if finding.example:
                yield CodeBlock(textwrap.indent(finding.example, "    "))
        if self.findings:
            yield ""
        yield from self.notes


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a job's ranks, in rank order."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / "check").glob("rank-*.json")]
    return sorted(records, key=lambda record: record["rank"])


def read_single_run_id(folder: Path) -> str:
    """Return the id of the single-process run of a job's check, or "" if there is none."""
    try:
        return str(json.loads((folder / SINGLE_RUN_FILE).read_text(encoding="utf-8"))["single"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def compare(ranks: Sequence[Record], reference: Record | None = None) -> Comparison:
    """Compare the records of all ranks with each other and with that of a single process (``reference``)."""
    result = Comparison(len(ranks), min((len(rank["steps"]) for rank in ranks), default=0))
    if problem := next((rank["problem"] for rank in ranks if rank.get("problem")), ""):
        result.left_out.append(f"A rank could not be recorded to the end: {problem}.")
    if result.steps:
        _Comparer(ranks, reference or {}, result).compare()
    else:
        result.left_out.append("No step of a torch optimizer was recorded, so there is nothing to compare.")
    return result


_SAMPLES_EXAMPLE = """\
sampler = DistributedSampler(dataset, num_replicas=size, rank=rank)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)
# or, without a DataLoader:
inputs, targets = inputs[rank::size], targets[rank::size]"""
#: A stream needs a different fix, because DataLoader does not accept a sampler for it.
_STREAM_EXAMPLE = """\
def __iter__(self):
    info = torch.utils.data.get_worker_info()
    workers, worker = (info.num_workers, info.id) if info else (1, 0)
    return itertools.islice(self.read(), rank * workers + worker, None, size * workers)
# or, for Hugging Face datasets:
dataset = datasets.distributed.split_dataset_by_node(dataset, rank=rank, world_size=size)"""
_NO_SYNC_EXAMPLE = """\
is_last = (i + 1) % accumulate == 0
with contextlib.nullcontext() if is_last else model.no_sync():
    model(inputs).backward()"""
_WRAP_EXAMPLE = """\
torch.distributed.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(model)  # and call this model
# or, with Horovod:
optimizer = hvd.DistributedOptimizer(optimizer)"""
#: Text, remedy and example code of each finding by its code, as templates with fields in braces.
RULES = {
    "trainer-alone": (
        "Lightning's {name} uses one process on each rank, so the {ranks} ranks train independently.",
        "Set devices to the number of processes on each node, and num_nodes to the number of nodes.",
        '{name}(accelerator="{accelerator}", devices={devices}, strategy="ddp")',
    ),
    "same-samples": (
        "Processes train on the same samples: {same}.",
        "Give each rank and each of its DataLoader workers its own part of the data set.",
        _SAMPLES_EXAMPLE,
    ),
    "same-augmentation": (
        "All ranks use the same random numbers for their samples, so sample k of each rank gets the same augmentation.",
        "Add the rank to the seed after the model is built, so that all ranks still start with the same weights.",
        "torch.manual_seed(seed + rank)\nrandom.seed(seed + rank)\nnumpy.random.seed(seed + rank)",
    ),
    "no-set-epoch": (
        "set_epoch of the sampler was not called, so all epochs use the same order.",
        "Call sampler.set_epoch(epoch) at the start of each epoch.",
        "for epoch in range(epochs):\n    sampler.set_epoch(epoch)",
    ),
    "different-start": (
        "The ranks start with different weights: {number} differ, {tensor} the most ({size}).",
        "Broadcast the weights of rank 0 before the first step, or use the same seed on all ranks.",
        "model = DistributedDataParallel(model)  # broadcasts the weights\n"
        "hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # Horovod",
    ),
    "no-sync-on-last-backward": (
        "The last backward pass before optimizer.step() ran under no_sync(), so step {step} averages no gradients.",
        "Leave no_sync() before the last micro-batch, including its forward pass.",
        _NO_SYNC_EXAMPLE,
    ),
    "gradients-not-averaged": (
        "Gradients are not averaged across ranks: in step {step}, {number} differ, {tensor} the most ({size}).",
        "Average the gradients of all ranks in each step.",
        _WRAP_EXAMPLE,
    ),
    "weights-depart": (
        "From step {step} on, weights differ despite equal gradients, {tensor} the most ({size}). Rates: {rates}.",
        "Use the same optimizer settings and optimizer state on all ranks (Horovod: hvd.broadcast_optimizer_state).",
        "",
    ),
    "gradients-scaled": (
        "In step {step}, gradients are {factor} times those of one process.",
        "Average gradients across ranks, and the loss over the samples of a rank, instead of summing them.",
        "dist.all_reduce(p.grad)\np.grad /= dist.get_world_size()\n"
        "optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Average)  # Horovod",
    ),
    "gradients-differ": (
        "In step {step}, gradients differ by {size} from those of one process with the same samples, most in {tensor}.",
        "Check what a rank does with its samples or gradients that a single process does not.",
        "",
    ),
    "batch-norm": (
        "{layers} uses statistics of each rank's own samples, so gradients differ by {size} from one process.",
        "This is expected. If each rank has few samples, synchronize the statistics.",
        "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",
    ),
    "rate-not-scaled": (
        "The learning rate is {rate} as on one process, but each step has {ratio} times the samples.",
        "The linear scaling rule (Goyal et al., 2017) suggests {scaled}, after a warm-up.",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * world_size)",
    ),
}
#: The levels of the findings that are not errors.
_LEVELS: dict[str, Level] = dict.fromkeys(("same-augmentation", "batch-norm", "rate-not-scaled"), "info")
_LEVELS["no-set-epoch"] = "warning"


class _Comparer:
    """Adds findings to a comparison, except consequences of other findings."""

    def __init__(self, ranks: Sequence[Record], reference: Record, result: Comparison) -> None:
        self._ranks, self._rank_0, self._reference, self._result = ranks, ranks[0], reference, result
        self._compared, self._left_out = result.compared, result.left_out
        #: Returns the line of the last "forward" or "backward" of rank 0, or the line that created an optimizer.
        self._get_line = self._rank_0["lines"].get
        #: The samples of all ranks in each step.
        self._samples = [[_get_samples(rank["steps"][step]) for rank in ranks] for step in range(result.steps)]
        #: The batches of rank 0 from each loader.
        self._batches = {
            name: [step["batches"][name] for step in self._rank_0["steps"] if name in step["batches"]]
            for name in self._rank_0["loaders"]
        }
        #: A step, the number of an optimizer, and the records of its step on all ranks.
        self._optimizer_steps: list[tuple[int, str, list[Record]]] = [
            (step, optimizer, [rank["steps"][step]["optimizers"][optimizer] for rank in ranks])
            for step in range(result.steps)
            for optimizer in self._rank_0["steps"][step]["optimizers"]
            if all(optimizer in rank["steps"][step]["optimizers"] for rank in ranks)
        ]

    def _add(self, code: str, line: Any, *, example: str = "", **fields: Any) -> None:
        """Add a finding. ``line`` is the recorded line of the user's code; ``fields`` fill the templates."""
        details: dict[str, Any] = {name: fields[name] for name in ("step", "tensor", "size") if name in fields}
        details |= {"file": line[0], "line": line[1]} if line and line[0] else {}
        fields = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in fields.items()}
        fields |= {"size": f"{100 * details.get('size', 0.0):.3g} %", "ranks": len(self._ranks)}
        *texts, default_example = RULES[code]
        text, remedy, example = (part.format_map(fields) for part in (*texts, example or default_example))
        self._result.findings.append(Difference(_LEVELS.get(code, "error"), code, text, remedy, example, **details))

    def compare(self) -> None:
        """Make all comparisons."""
        if (trainer := self._rank_0.get("trainer")) and trainer["processes"] == 1:
            self._add("trainer-alone", **trainer)
            return  # it explains all else
        self._compare_data()
        sharding = next((rank["sharded"] for rank in self._ranks if rank.get("sharded")), "")
        if not sharding and any(rank["shapes"] != self._rank_0["shapes"] for rank in self._ranks):
            sharding = "pipeline or tensor parallel training"
        if sharding:
            self._left_out.append(f"The weights are sharded across ranks ({sharding}), so they were not compared.")
        else:
            self._compare_weights()

    def _compare_data(self) -> None:
        """Compare the samples of the ranks, and their workers, random numbers and order."""
        loaders, streams = self._rank_0["loaders"], {}
        for name, info in loaders.items():
            first_pass = [batch for batch in self._batches[name] if batch["pass"] == 0 and batch["samples"]]
            has_repeats = len({tuple(batch["samples"]) for batch in first_pass}) < len(first_pass)
            if has_repeats and info.get("iterable") and info["workers"] > 1:
                streams[name] = f"the {count(info['workers'])} DataLoader workers of each rank read the same ones"
        name, text, fields = self._find_same_samples() or (next(iter(streams), ""), "", {})
        if text := ", and ".join(filter(None, (text, streams.get(name)))):
            line = loaders.get(name, {}).get("line") or self._get_line("forward")
            example = _STREAM_EXAMPLE if loaders.get(name, {}).get("iterable") else ""
            self._add("same-samples", line, example=example, same=text, **fields)
        for name, info in ((name, info) for name, info in loaders.items() if self._batches[name]):
            # Workers derive the seeds of all generators from torch's seed.
            generators = ["workers"] if info.get("draws") and info.get("workers") else info.get("draws", ())
            states = [rank["loaders"].get(name, {}).get("random", {}) for rank in self._ranks]
            if any(states[0].get(key) and len({state.get(key) for state in states}) == 1 for key in generators):
                self._add("same-augmentation", info.get("line"))
            epochs = info.get("epochs", [])
            # Lightning calls set_epoch itself.
            is_unset = len(epochs) > 1 or not (info.get("set_epoch") or "trainer" in self._rank_0)
            if info.get("shuffles") and len(set(epochs)) == 1 and is_unset:
                self._add("no-set-epoch", info.get("loop_line"))

    def _find_same_samples(self) -> tuple[str, str, dict[str, Any]] | None:
        """Return the loader of ranks that train on the same samples, a text and fields of the finding, or None."""
        has_repeats = any(1 < len(values) >= 2 * len(set(values)) for step in self._samples for values in step)
        if has_repeats or not any(map(all, self._samples)):
            self._left_out.append("Samples were not compared: none were recorded, or many of a rank are equal.")
            return None
        for step, samples in enumerate(self._samples):
            for (rank_a, set_a), (rank_b, set_b) in itertools.combinations(enumerate(map(set, samples)), 2):
                shared = len(set_a & set_b)
                if shared and shared >= _MIN_OVERLAP * min(len(set_a), len(set_b)):
                    subject = f"{count(shared)} of {count(len(set_a))} samples of ranks {rank_a} and {rank_b}"
                    name = next(iter(self._rank_0["steps"][step]["batches"]), "")
                    fields = {"step": step, "size": shared / len(set_a)}
                    return name, f"{subject} in step {step} are identical", fields
        self._compared.append("the samples of each step (no two ranks train on the same one)")
        for name, info in self._rank_0["loaders"].items():
            length, infos = info.get("samples"), [rank["loaders"].get(name, {}) for rank in self._ranks]
            # The samples at a few indices show whether the ranks have the same data set.
            reads = [(other.get("samples"), other.get("read")) for other in infos]
            has_same_data = info.get("read") and all(read == reads[0] for read in reads)
            size = max((len(batch["samples"]) for batch in self._batches[name]), default=0)
            is_whole = length and min(other.get("batches", 0) for other in infos) * size >= _MIN_COVERAGE * length
            if has_same_data and is_whole:
                return name, f"each rank iterates over all {count(length)} samples in its own order", {}
        return None

    def _compare_weights(self) -> None:
        """Compare weights and gradients across ranks and with a single process."""
        is_same_start = is_averaged = True
        for position, (step, optimizer, records) in enumerate(self._optimizer_steps):
            line, spread = self._get_line(optimizer), self._describe_spread(optimizer, records, "gradients")
            if step == 0 and is_same_start and _find_unequal(records, "before"):
                is_same_start = False
                self._add("different-start", line, step=step, **self._describe_spread(optimizer, records, "before"))
            if spread["size"] > _ROUNDING:  # not if it is NaN
                is_averaged = False
                self._explain_gradients(position, spread)
                break
            if is_same_start and _find_unequal(records, "after"):
                rates = listing([f"{rate:.4g}" for rate in sorted({record["rate"] for record in records})])
                fields = self._describe_spread(optimizer, records, "after")
                self._add("weights-depart", line, step=step, rates=rates, **fields)
                break
        else:
            self._compared.append("the gradients of each step (identical on all ranks)")
        if is_same_start:
            self._compared.append("the weights before the first step (bitwise identical on all ranks)")
        if not self._reference:
            self._left_out.append("No single process trained on all samples, so a sum would look like a mean.")
            return
        problem = self._compare_with_reference() if is_averaged and is_same_start else ""
        problem = problem if is_same_start else "the ranks started with different weights"
        if problem:
            self._left_out.append(f"Gradients were not compared with one process: {problem}.")
        if self._reference["steps"] and not self._result.findings:
            self._compare_rates()

    def _explain_gradients(self, position: int, spread: Mapping[str, Any]) -> None:
        """Report gradients that differ across ranks, or say why they may differ."""
        step, optimizer, records = self._optimizer_steps[position]
        steps = [rank["steps"][step] for rank in self._ranks]
        later = [entries for _, key, entries in self._optimizer_steps[position + 1 :] if key == optimizer]
        unsynced_line = next((record["unsynced"] for record in steps if record["unsynced"] is not None), None)
        if (
            any(record["local"] for record in steps)
            or any(rank.get("averages_weights") for rank in self._ranks)
            or not (_find_unequal(records, "before") or _find_unequal(records, "after"))
            or not all(_find_unequal(entries, "before") for entries in later)
        ):
            self._left_out.append(
                "Gradients were not compared, because the ranks step inside no_sync() or have the same weights later, "
                "as in local SGD. Each rank trains its own model unless weights are averaged."
            )
        elif unsynced_line is not None:
            self._add("no-sync-on-last-backward", unsynced_line, step=step, **spread)
        else:
            self._add("gradients-not-averaged", self._get_line("backward"), step=step, **spread)

    def _describe_spread(self, optimizer: str, records: Sequence[Record], key: str) -> dict[str, Any]:
        """Return the ``number`` of tensors that differ, and name and relative size of the largest difference."""
        tensors = zip(*(record[key] for record in records), strict=True)
        gaps = [max((math.dist(first[1], other[1]) for other in others), default=0.0) for first, *others in tensors]
        worst = gaps.index(max(gaps))
        norm = max(math.hypot(*record[key][worst][1]) for record in records)
        number = f"{len(_find_unequal(records, key))} of {plural(len(gaps), 'tensor')}"
        return {
            "number": number,
            "tensor": self._rank_0["names"][optimizer][worst],
            "size": gaps[worst] / (norm or 1.0),
        }

    def _compare_with_reference(self) -> str:
        """Report the first gradients that differ from one process. Return a reason if they cannot be compared."""
        references, compared_steps = self._reference["steps"], set()
        if not references or self._reference.get("problem"):
            return str(self._reference.get("problem") or "it made no step")
        if any(record["steps"][0]["random"] for record in (*self._ranks, self._reference)):
            return "the model draws random numbers (for example dropout), which differ from run to run"
        #: The steps in which the single process had the samples of all ranks, and all ranks had equally many.
        same_steps = [
            step
            for step, (reference, samples) in enumerate(zip(references, self._samples, strict=False))
            if len(set(map(len, samples))) == 1 and sorted(itertools.chain(*samples)) == sorted(_get_samples(reference))
        ]
        if 0 not in same_steps:
            return "it had other samples (batches must come from a DataLoader and have the same size on all ranks)"
        tolerance = _HALF_TOLERANCE if self._rank_0["is_half"] else _TOLERANCE
        for step, optimizer, records in self._optimizer_steps:
            single = references[step]["optimizers"].get(optimizer) if step in same_steps else None
            if single is None or references[step]["random"] or _find_unequal([*records, single], "before"):
                continue
            compared_steps.add(step)
            factor, residual = _fit_factor(records[0], single)
            if not (residual > tolerance or abs(factor - 1) > tolerance):  # also if they are NaN
                continue
            layers = listing(self._rank_0["layers"])
            code, size = "batch-norm" if layers else "gradients-differ", residual
            if residual <= tolerance:
                code, size = "gradients-scaled", abs(factor - 1)
            fields = self._describe_spread(optimizer, [records[0], single], "gradients") | {"size": size}
            self._add(code, self._get_line("backward"), step=step, layers=layers, factor=factor, **fields)
            return ""
        if not compared_steps:
            return "it started with other weights (set a seed to compare them)"
        steps = plural(len(compared_steps), "step")
        self._compared.append(f"gradients with a single process that had all samples, in {steps} (identical)")
        return ""

    def _compare_rates(self) -> None:
        """Report a learning rate that was not scaled although the global batch is larger."""
        single = self._reference["steps"][0]
        rates, single_rates = (
            [record["rate"] for record in step["optimizers"].values()] for step in (self._rank_0["steps"][0], single)
        )
        sizes = (info["own_size"] for info in self._reference["loaders"].values() if info.get("own_size"))
        ratio = sum(map(len, self._samples[0])) / (next(sizes, 0) or len(_get_samples(single)) or math.inf)
        if rates == single_rates and any(rates) and ratio > 1.5:
            self._add("rate-not-scaled", self._get_line("0"), rate=rates[0], scaled=rates[0] * ratio, ratio=ratio)


def _get_samples(step: Record) -> list[str]:
    """Return the hashes of a step's samples: of its batches, or of the model's inputs if no batch was recorded."""
    return [sample for batch in step["batches"].values() for sample in batch["samples"]] or list(step["inputs"])


def _find_unequal(records: Sequence[Record], key: str) -> list[int]:
    """Return the indices of the tensors whose hashes differ."""
    tensors = itertools.zip_longest(*(record[key] for record in records), fillvalue=("", ()))
    return [index for index, values in enumerate(tensors) if len({digest for digest, _ in values}) > 1]


def _fit_factor(rank: Record, single: Record) -> tuple[float, float]:
    """Return the factor that best scales the single process's gradients to a rank's, and the relative residual."""
    ours, other = ([x for _, sketch in record["gradients"] for x in sketch] for record in (rank, single))
    square = math.fsum(y * y for y in other)
    if not square:
        return 1.0, float(any(ours))
    factor = math.fsum(x * y for x, y in zip(ours, other, strict=True)) / square
    return factor, math.dist(ours, [factor * y for y in other]) / (math.hypot(*ours) or 1.0)
