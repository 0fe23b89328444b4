"""Compare the first training steps of all ranks with each other and with a single process that had all samples.

``worker.hooks.check`` records the steps in ``check/rank-<n>.json`` of the job's folder. Each file describes loaders,
layers and weights (``names``, ``shapes``), and has for each step::

    {"batches": [{"loader", "pass", "size", "samples": [hash]}], "inputs": [hash],
     "losses": [number], "random": bool, "unsynced": "", "no_sync" or "forward", "unsynced_line": line, "local": bool,
     "optimizers": [{"index", "rates", "before": [hash], "weights": [sketch], "gradients": [sketch or None],
                     "bits": [hash], "after": [hash], "weights_after": [sketch]}]}

Sketches are linear, so the sketch of a mean gradient is the mean of the sketches. The norm of a difference of tensors
is the norm of the difference of their sketches, to about 25 %. A line is ``[file or cell, number]``, or ``["", 0]`` if
unknown. ``unsynced`` is the reason why the last backward pass did not average gradients; ``local`` is true if an
optimizer stepped inside ``no_sync()``. The first cause comes first; its consequences are not reported.
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
from typing import Any, NamedTuple

from distdl_jupyter.core.findings import Level
from distdl_jupyter.core.humanize import count, listing, plural
from distdl_jupyter.core.table import CodeBlock, Display

Sketch = Sequence[float]
Record = Mapping[str, Any]
#: Step, index and weight names of an optimizer, and the records of all ranks for this step.
Step = tuple[int, str, list[str], list[Record]]
#: Maximum relative difference of equal gradients (due to the order of summation), in single and in half precision.
_TOLERANCE, _HALF_TOLERANCE = 0.02, 0.1
#: Minimum share of common samples for two ranks to count as equal, and of the data set for a full pass.
_MIN_OVERLAP, _MIN_COVERAGE = 0.5, 0.95


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

    @property
    def location(self) -> str:
        """Return the location in the user's code, such as "train.py, line 12", or "" if it is unknown."""
        return f"{self.file}, line {self.line}" if self.file else ""


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
        """Return whether steps were compared without an error or a warning."""
        return self.steps > 0 and all(finding.level == "info" for finding in self.findings)

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        if not self.steps:
            return "Nothing could be compared."
        mistakes = sum(finding.level != "info" for finding in self.findings)
        number = plural(mistakes, "mistake") if mistakes else "No mistake"
        return f"{number} found in {plural(self.steps, 'step')} of {plural(self.processes, 'rank')}."

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
            yield from ("", f"{finding.level.capitalize()}: {location}{finding.text}", finding.remedy)
            if finding.example:
                yield CodeBlock(textwrap.indent(finding.example, "    "))
        if self.findings:
            yield ""
        yield from self.notes


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a job's ranks, in rank order."""
    records = []
    for path in (folder / "check").glob("rank-*.json"):
        try:
            records.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    return sorted(records, key=lambda record: record["rank"])


def get_single_run_file(folder: Path) -> Path:
    """Return the file with the id of the check's single-process run: ``{"single": id}``."""
    return folder / "check" / "single.json"


def read_single_run_id(folder: Path) -> str:
    """Return the id of the single-process run of a job's check, or "" if there is none."""
    try:
        return str(json.loads(get_single_run_file(folder).read_text(encoding="utf-8"))["single"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


class _Rule(NamedTuple):
    """A type of finding. Its texts are templates with fields in braces.

    ``examples`` maps a library or a type of loader to the fix as code; "" is the key for all others.
    """

    code: str
    text: str
    remedy: str
    examples: Mapping[str, str] = {}
    level: Level = "error"


#: A stream needs a different fix, because DataLoader does not accept a sampler for it.
_STREAM_EXAMPLE = (
    "def __iter__(self):\n"
    "    info = torch.utils.data.get_worker_info()\n"
    "    workers, worker = (info.num_workers, info.id) if info else (1, 0)\n"
    "    part, parts = rank * workers + worker, size * workers\n"
    "    return itertools.islice(self.read(), part, None, parts)"
)
_WRAP_EXAMPLE = "model = torch.nn.parallel.DistributedDataParallel(model)  # and call this model"
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
        {"": '{trainer}(accelerator="{accelerator}", devices={devices}{nodes}, strategy="ddp")'},
    ),
    _Rule(
        "same-samples",
        "The ranks train on the same samples: {same}.",
        "Give each rank its own part of the data set.",
        {
            "": "sampler = DistributedSampler(dataset, num_replicas=size, rank=rank)\n"
            "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
            "no loader": "inputs, targets = inputs[rank::size], targets[rank::size]",
            "stream": _STREAM_EXAMPLE,
            "Hugging Face": "from datasets.distributed import split_dataset_by_node\n"
            "dataset = split_dataset_by_node(dataset, rank=rank, world_size=size)",
            "equal samplers": "sampler = DistributedSampler(dataset)  # after init_process_group()",
            "Accelerate": "loader = accelerator.prepare(loader)",
            "Fabric": "loader = fabric.setup_dataloaders(loader)",
        },
    ),
    _Rule(
        "same-samples-in-workers",
        "Each of the {workers} DataLoader workers of a rank reads the whole data set, so each rank trains on every "
        "sample {workers} times.",
        "Let each worker of each rank skip the samples that the others read.",
        {"": _STREAM_EXAMPLE},
    ),
    _Rule(
        "same-augmentation",
        "All ranks use the same random numbers for their samples, so sample k of each rank gets the same augmentation.",
        "Add the rank to the seed after the model is built, so that all ranks still start with the same weights.",
        {"": "{seeds}"},
        level="info",
    ),
    _Rule(
        "no-set-epoch",
        "set_epoch of the {sampler} was not called, so all epochs use the same order.",
        "Call sampler.set_epoch(epoch) at the start of each epoch.",
        {"": "for epoch in range(epochs):\n    sampler.set_epoch(epoch)"},
        level="warning",
    ),
    _Rule(
        "different-start",
        "The ranks start with different weights: before the first step, {differences}.",
        "Broadcast the weights of rank 0 before the first step, or use the same seed on all ranks.",
        {
            "": "model = DistributedDataParallel(model)  # broadcasts the weights",
            "Horovod": "hvd.broadcast_parameters(model.state_dict(), root_rank=0)",
        },
    ),
    _Rule(
        "no-sync-on-last-backward",
        "The last backward pass before optimizer.step() ran without averaging (no_sync()), so the gradients of step "
        "{step} are not averaged across ranks.",
        "Leave no_sync() before the last micro-batch, including its forward pass.",
        {
            "": "last = (i + 1) % accumulate == 0\n"
            "with contextlib.nullcontext() if last else model.no_sync():\n"
            "    model(inputs).backward()"
        },
    ),
    _Rule(
        "gradients-not-averaged",
        "Gradients are not averaged across ranks, so each rank trains its own model: in step {step}, {differences}.",
        "Average the gradients of all ranks in each step.",
        {
            "": _WRAP_EXAMPLE,
            "Horovod": "optimizer = hvd.DistributedOptimizer(\n"
            "    optimizer, named_parameters=model.named_parameters()\n"
            ")",
            "Accelerate": "model, optimizer = accelerator.prepare(model, optimizer)",
            "Fabric": "model, optimizer = fabric.setup(model, optimizer)",
            "no group": f"torch.distributed.init_process_group()\n{_WRAP_EXAMPLE}",
        },
    ),
    _Rule(
        "weights-depart",
        "From step {step} on, the ranks have different weights although they step with the same gradients: "
        "{differences}. Learning rates: {rates}.",
        "Use the same optimizer settings and optimizer state on all ranks.",
        {"Horovod": "hvd.broadcast_optimizer_state(optimizer, root_rank=0)"},
    ),
    _Rule(
        "gradients-summed",
        "Gradients are summed across ranks instead of averaged: in step {step}, all are {ranks} times those of a "
        "single process with the same samples.",
        "Divide the sum by the number of ranks, or use the average.",
        {
            "": "dist.all_reduce(p.grad)\np.grad /= dist.get_world_size()",
            "Horovod": "optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Average)",
        },
    ),
    _Rule(
        "gradients-scaled",
        "Gradients in step {step} are {factor} times those of a single process with the same samples. The mean loss of "
        "the ranks is {mean}, the loss of the single process {single}.",
        "Average the loss over each rank's samples (do not sum it), and average gradients across ranks.",
        level="warning",
    ),
    _Rule(
        "gradients-differ",
        "In step {step}, gradients differ by {rest} from those of a single process with the same samples and weights, "
        "most in {tensor}.",
        "Check what a rank does with its samples or gradients that a single process does not.",
    ),
    _Rule(
        "batch-norm",
        "{layers} computes its statistics from each rank's own samples, so in step {step} gradients differ by {rest} "
        "from a single process, most in {tensor}. This is expected.",
        "If each rank has few samples, synchronize the statistics.",
        {"": "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)"},
        level="info",
    ),
    _Rule(
        "rate-not-scaled",
        "The learning rate is {rate}, the same on {ranks} processes as on one, but each step has {ratio} times the "
        "samples.",
        "The linear scaling rule (Goyal et al., 2017) suggests {scaled}, after a warm-up.",
        {"": "optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * world_size)"},
        level="info",
    ),
)
_RULES_BY_CODE = {rule.code: rule for rule in _RULES}


def compare(ranks: Sequence[Record], reference: Record | None = None) -> Comparison:
    """Compare the records of all ranks with each other and with that of a single process (``reference``)."""
    result = Comparison(len(ranks), min((len(rank["steps"]) for rank in ranks), default=0))
    if problem := next((rank["problem"] for rank in ranks if rank.get("problem")), ""):
        result.left_out.append(f"A rank could not be recorded to the end ({problem}).")
    sharded = next((rank["sharded"] for rank in ranks if rank.get("sharded")), "")
    if not result.steps and not sharded:
        result.left_out.append("No step of a torch optimizer was recorded, so there is nothing to compare.")
        return result
    comparer = _Comparer(ranks, reference or {}, result)
    if result.steps:
        if comparer.find_lone_trainer():
            return result
        comparer.compare_data()
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


class _Loader(NamedTuple):
    """A loader: the batches on which rank 0 has trained, and the records of all ranks."""

    name: str
    batches: list[Record]
    records: list[Record]


class _Comparer:
    """Adds findings to a comparison, except consequences of other findings."""

    def __init__(self, ranks: Sequence[Record], reference: Record, result: Comparison) -> None:
        self._ranks, self._rank_0, self._reference, self._result = ranks, ranks[0], reference, result
        is_half = any("16" in kind for rank in ranks for kind in rank.get("dtypes", ()))
        self._tolerance = _HALF_TOLERANCE if is_half else _TOLERANCE
        self._trainer: Record = self._rank_0.get("trainer") or {}
        #: Returns the line of the last "forward", "backward" or "step" of rank 0, and of the creation of an optimizer.
        self._line = self._rank_0.get("lines", {}).get
        self._creation_line = self._rank_0.get("made", {}).get
        #: The training library as a key of ``_Rule.examples``, "" for plain torch.
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
        rule, fields = _RULES_BY_CODE[code], {"step": None, "ranks": count(len(self._ranks)), **fields}
        example = rule.examples.get(fix or self._library, rule.examples.get("", ""))
        text, remedy, example = (part.format_map(fields) for part in (rule.text, rule.remedy, example))
        file, number = line or ("", 0)
        details: dict[str, Any] = {name: fields[name] for name in ("step", "tensor", "size") if name in fields}
        details |= {"file": file, "line": number or None}
        self._result.findings.append(Difference(rule.level, code, text, remedy, example, **details))

    def find_lone_trainer(self) -> bool:
        """Report a trainer with a single process on each rank, which explains all else; return whether there is one."""
        trainer = self._trainer
        if trainer.get("size") != 1:
            return False
        nodes = len(self._ranks) // trainer["devices"]
        fields = {name: trainer[name] for name in ("accelerator", "devices")}
        fields |= {"trainer": trainer["name"], "nodes": f", num_nodes={nodes}" if nodes > 1 else ""}
        self._add("trainer-alone", trainer["line"], **fields)
        return True

    # samples ------------------------------------------------------------------------------------

    def compare_data(self) -> None:
        """Compare the samples of the ranks, and their workers, random numbers and order."""
        batches = [batch for step in self._rank_0["steps"] for batch in step["batches"]]
        loaders = [
            _Loader(
                name,
                [batch for batch in batches if str(batch["loader"]) == name],
                [rank.get("loaders", {}).get(name, {}) for rank in self._ranks],
            )
            for name in self._rank_0.get("loaders", {})
        ]
        if not self._find_same_samples(loaders):
            info = next((loader.records[0] for loader in loaders if _is_read_repeatedly(loader)), None)
            if info is not None:
                self._add("same-samples-in-workers", info.get("line"), workers=count(info["workers"]))
        active = [loader.records for loader in loaders if loader.batches]
        for records in active:
            info, has_workers = records[0], bool(records[0].get("workers"))
            states = [record.get("random") or {} for record in records]
            sources = {name: "workers" if has_workers else name for name in info.get("draws") or ()}
            generators = [
                name
                for name, source in sources.items()
                if source in states[0] and len({state.get(source) for state in states}) == 1
            ]
            if generators:
                # Workers derive the seeds of all generators from torch's seed.
                seeds = "\n".join(_SEED_EXAMPLES[name] for name in (["torch"] if has_workers else generators))
                self._add("same-augmentation", info.get("line"), seeds=seeds)
                break
        for info, *_ in active:
            epochs = info.get("epochs", [])
            is_repeated = len(epochs) > 1 and epochs[0] == epochs[1]
            is_unset = len(epochs) == 1 and not info.get("set_epoch") and not self._trainer
            if info.get("shuffles") and (is_repeated or is_unset):
                self._add("no-set-epoch", info.get("loop_line"), sampler=info["sampler"])

    def _find_same_samples(self, loaders: Sequence[_Loader]) -> bool:
        """Report ranks that train on the same samples; return whether there are any."""
        steps = [[_get_samples(rank["steps"][step]) for rank in self._ranks] for step in range(self._result.steps)]
        has_repeats = False
        for step, rank_samples in enumerate(steps):
            has_repeats = has_repeats or any(map(_has_repeats, rank_samples))
            for (rank_a, samples_a), (rank_b, samples_b) in itertools.combinations(enumerate(rank_samples), 2):
                set_a, set_b = set(samples_a), set(samples_b)
                shared, smaller = len(set_a & set_b), min(len(set_a), len(set_b))
                is_unclear = _has_repeats(samples_a) or _has_repeats(samples_b)
                if shared and shared >= _MIN_OVERLAP * smaller and not is_unclear:
                    text = (
                        f"{count(shared)} of {count(len(set_a))} samples of ranks {rank_a} and {rank_b} in step "
                        f"{step} are identical"
                    )
                    names = [str(batch["loader"]) for batch in self._rank_0["steps"][step]["batches"][:1]]
                    loader = next((loader for loader in loaders if loader.name in names), _Loader("", [], [{}]))
                    self._add_same_samples(text, loader if names else None, step=step, size=shared / len(set_a))
                    return True
        if has_repeats:
            self._result.left_out.append(
                "Many samples of a rank are equal to each other, so samples were not compared between ranks."
            )
        elif not any(all(rank_samples) for rank_samples in steps):
            self._result.left_out.append("No samples were recorded on any rank, so samples were not compared.")
        else:
            self._result.compared.append("the samples of each step (no two ranks train on the same one)")
            for loader in loaders:
                if length := self._find_whole_pass(loader):
                    text = (
                        f"each rank iterates over all {count(length)} samples of the data set in its own order, so an "
                        f"epoch trains on every sample {count(len(self._ranks))} times"
                    )
                    self._add_same_samples(text, loader)
                    return True
        return False

    def _find_whole_pass(self, loader: _Loader) -> int:
        """Return the length of the data set if each rank iterates over all of it in its own order, else 0."""
        length = int(loader.records[0].get("samples") or 0)
        size = max((batch["size"] for batch in loader.batches), default=0)
        is_whole = all((info.get("batches") or 0) * size >= _MIN_COVERAGE * (length or 1) for info in loader.records)
        if not length or not is_whole or any(info.get("samples") != length for info in loader.records):
            return 0
        rank_batches = [[batch for step in rank["steps"] for batch in step["batches"]] for rank in self._ranks]
        rank_samples = [
            {sample for batch in batches if str(batch["loader"]) == loader.name for sample in batch["samples"]}
            for batches in rank_batches
        ]
        # Two ranks that draw from the same data set have len * len / length samples in common on average.
        has_overlap = any(
            len(samples & other) >= max(1.0, len(samples) * len(other) / length / 2)
            for samples, other in itertools.combinations(rank_samples, 2)
        )
        orders = [info.get("read") or [] for info in loader.records]
        return length if has_overlap or (orders[0] and all(order == orders[0] for order in orders)) else 0

    def _add_same_samples(self, text: str, loader: _Loader | None, **fields: Any) -> None:
        """Report that ranks train on the same samples, with the fix for their type of loader."""
        records = loader.records if loader else [{}]
        info, parts = records[0], [record.get("part") or (None, None) for record in records]
        if loader and _is_read_repeatedly(loader):
            text += f"; so do the {count(info['workers'])} workers of each rank's DataLoader"
        fix = "" if loader else "no loader"
        if info.get("iterable"):
            fix = "Hugging Face" if info.get("hugging_face") else "stream"
        elif info.get("sampler") == "DistributedSampler" and len(set(map(repr, parts))) < len(self._ranks):
            fix = "equal samplers"
            text += f"; the DistributedSampler has rank {parts[0][1]} of {parts[0][0]} on more than one of them"
        self._add("same-samples", info.get("line") or self._line("forward"), fix=fix, same=text, **fields)

    # weights and gradients of the ranks -----------------------------------------------------------

    def compare_weights(self) -> None:
        """Compare weights and gradients across ranks and with a single process."""
        result, optimizers, is_same_start = self._result, list(self._iter_optimizer_steps()), True
        for step, index, names, records in optimizers:
            if step == 0 and (indices := _find_unequal([record["before"] for record in records])):
                is_same_start = False
                fields = _format_spread(names, records, "weights", indices)
                self._add("different-start", self._creation_line(index), step=0, **fields)
                break
        if is_same_start:
            result.compared.append("the weights before the first step (bitwise identical on all ranks)")
        is_averaged = self._compare_gradients(optimizers)
        for step, index, names, records in optimizers if is_averaged and is_same_start else ():
            # The first step after which weights differ although the gradients were the same.
            if indices := _find_unequal([record.get("after", record["before"]) for record in records]):
                fields = _format_spread(names, records, "weights_after", indices)
                rates = listing([f"{rate:.4g}" for rate in sorted({record["rates"][0] for record in records})])
                self._add("weights-depart", self._creation_line(index), step=step, rates=rates, **fields)
                break
        if not self._reference:
            result.left_out.append(
                "No single process trained on all samples, so sums and means could not be distinguished."
            )
            return
        if reason := self._explain_incomparable() if is_same_start else "the ranks started with different weights":
            result.left_out.append(f"Losses and gradients were not compared with one process: {reason}.")
        elif is_averaged:
            self._compare_with_reference(optimizers)
        if layers := self._rank_0.get("layers"):
            result.left_out.append(
                f"Batch statistics ({listing(layers)}) are computed from each rank's own samples, as expected."
            )
        self._compare_rates()

    def _iter_optimizer_steps(self) -> Iterator[Step]:
        for step in range(self._result.steps):
            for index in (optimizer["index"] for optimizer in self._rank_0["steps"][step]["optimizers"]):
                entries = [entry for rank in self._ranks for entry in rank["steps"][step]["optimizers"]
                           if entry["index"] == index]  # fmt: skip
                if len(entries) == len(self._ranks):
                    yield step, str(index), self._rank_0["names"][str(index)], entries

    def _compare_gradients(self, optimizers: Sequence[Step]) -> bool:
        """Report gradients that differ across ranks. Return whether all ranks step with the same gradients."""
        for position, (step, index, names, records) in enumerate(optimizers):
            tensors = [tensor for tensor in range(len(names)) if _has_different_gradients(records, tensor)]
            if not tensors:
                continue
            steps = [rank["steps"][step] for rank in self._ranks]
            later_steps = [entries for _, key, _, entries in optimizers[position + 1 :] if key == index]
            hashes_after = [record.get("after") or [] for record in records]
            hashes_before = [record["before"] for record in records]
            fields = _format_spread(names, records, "gradients", tensors)
            if any(record.get("local") for record in steps):
                self._result.left_out.append(
                    "The optimizer steps inside no_sync(), as in local SGD, so gradients were not compared. If no step "
                    "runs outside no_sync(), each rank trains its own model."
                )
            elif (
                (all(hashes_after) and not _find_unequal(hashes_before) and not _find_unequal(hashes_after))
                or any(rank.get("averages_weights") for rank in self._ranks)
                or any(not _find_unequal([record["before"] for record in entries]) for entries in later_steps)
            ):
                self._result.left_out.append(
                    "The ranks step with different gradients but have the same weights after the step or some steps "
                    "later, so the weights are averaged there and gradients were not compared."
                )
            elif (unsynced := next((record for record in steps if record.get("unsynced")), None)) is not None:
                self._add("no-sync-on-last-backward", unsynced["unsynced_line"], step=step, **fields)
            else:
                line = self._creation_line(index) if self._library == "Horovod" else self._line("backward")
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
        steps, single = [rank["steps"][0] for rank in self._ranks], self._reference["steps"][0]
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

    def _compare_with_reference(self, optimizers: Sequence[Step]) -> None:
        """Compare the gradients with those of the single process, and report the first difference."""
        references = self._reference["steps"]
        steps = [step for step in range(min(self._result.steps, len(references))) if self._has_same_batches(step)]
        for step, index, names, records in optimizers:
            reference: Record = references[step] if step in steps else {"optimizers": [], "random": True}
            match = next((entry for entry in reference["optimizers"] if str(entry["index"]) == index), None)
            if match is None or reference["random"] or any(entry["before"] != match["before"] for entry in records):
                continue
            pairs = list(zip(records[0]["gradients"], match["gradients"], strict=True))
            factor, residual = _fit_factor(pairs)
            if residual <= self._tolerance and abs(factor - 1) <= self._tolerance:
                continue
            layers = listing(self._rank_0.get("layers", []))
            code, line, size = ("batch-norm", "forward", residual) if layers else ("gradients-differ", "step", residual)
            if residual <= self._tolerance:
                is_sum = abs(factor / len(self._ranks) - 1) < self._tolerance
                code, line, size = "gradients-summed" if is_sum else "gradients-scaled", "backward", abs(factor - 1)
            gaps = [_compute_norm([_subtract(ours, other)]) if ours and other else 0.0 for ours, other in pairs]
            mean = statistics.fmean(sum(rank["steps"][step]["losses"]) for rank in self._ranks)
            self._add(
                code,
                self._line(line),
                step=step,
                tensor=names[gaps.index(max(gaps))],
                size=size,
                layers=layers,
                rest=_format_percent(residual),
                factor=f"{factor:.4g}",
                mean=f"{mean:.4g}",
                single=f"{sum(reference['losses']):.4g}",
            )
            return
        self._result.compared.append(
            "losses and gradients with a single process that had the samples of all ranks, in "
            f"{plural(len(steps), 'step')} (identical)"
        )

    def _compare_rates(self) -> None:
        """Report a learning rate that was not scaled although the global batch is larger."""
        if not self._reference.get("steps") or self._result.findings:
            return
        first_steps = self._rank_0["steps"][0], self._reference["steps"][0]
        rates, single_rates = ([entry["rates"][0] for entry in step["optimizers"]] for step in first_steps)
        sizes = [info["own_size"] for info in self._reference.get("loaders", {}).values() if info.get("own_size")]
        batch_size = sizes[0] if sizes else len(_get_samples(first_steps[1]))
        ratio = sum(len(_get_samples(rank["steps"][0])) for rank in self._ranks) / (batch_size or math.inf)
        if rates and rates == single_rates and rates[0] and ratio > 1.5:
            values = {"rate": f"{rates[0]:.4g}", "scaled": f"{rates[0] * ratio:.4g}", "ratio": f"{ratio:.4g}"}
            self._add("rate-not-scaled", next(iter(self._rank_0.get("made", {}).values()), None), **values)


def _is_read_repeatedly(loader: _Loader) -> bool:
    """Return whether two workers of rank 0 have read the same batch of a stream."""
    info = loader.records[0]
    if not info.get("iterable") or info.get("workers", 0) < 2:
        return False
    hashes = [batch["samples"] for batch in loader.batches if batch["pass"] == 0]
    hashes = [samples for samples in hashes if samples and not _has_repeats(samples)]
    return any(first == second for first, second in itertools.combinations(hashes, 2))


def _get_samples(step: Record) -> list[str]:
    """Return the hashes of a step's samples: of its batches, or of the model's inputs if no batch was recorded."""
    return [sample for batch in step["batches"] for sample in batch["samples"]] or list(step["inputs"])


def _has_repeats(samples: Sequence[str]) -> bool:
    """Return whether hashes cannot distinguish samples: most occur more than once on the same rank."""
    return len(samples) > 1 and len(set(samples)) <= len(samples) / 2


def _find_unequal(digests: Sequence[Sequence[str]]) -> list[int]:
    return [index for index, values in enumerate(zip(*digests, strict=True)) if len(set(values)) > 1]


def _format_spread(names: Sequence[str], records: Sequence[Record], key: str, indices: Sequence[int]) -> dict[str, Any]:
    """Return how tensors differ from rank 0 as ``differences``; ``tensor`` and ``size`` are those of the largest."""
    sizes: dict[int, float] = {}
    for index in indices:
        first, *others = [record[key][index] or [0.0] for record in records]
        # Relative to the larger of both norms.
        gaps = [
            _compute_norm([_subtract(first, other)]) / (max(_compute_norm([first]), _compute_norm([other])) or 1.0)
            for other in others
        ]
        sizes[index] = max(gaps)
    worst = max(indices, key=lambda i: sizes[i])
    text = f"{names[worst]} differs"
    if len(indices) > 1:
        share = "all" if len(indices) == len(names) else f"{count(len(indices))} of"
        text = f"{share} {count(len(names))} tensors differ, most in {names[worst]},"
    return {"differences": f"{text} by {_format_percent(sizes[worst])}", "tensor": names[worst], "size": sizes[worst]}


def _format_percent(size: float) -> str:
    return f"{100 * size:.3g} %" if size < 10 else f"{size:.3g} times"


# sketches -----------------------------------------------------------------------------------------


def _subtract(sketch: Sketch, other: Sketch, factor: float = 1.0) -> list[float]:
    return [a - factor * b for a, b in zip(sketch, other, strict=True)] if len(sketch) == len(other) else list(sketch)


def _compute_norm(sketches: Iterable[Sketch | None]) -> float:
    """Return the combined norm of some tensors."""
    return math.sqrt(math.fsum(value * value for sketch in sketches if sketch for value in sketch))


def _has_different_gradients(records: Sequence[Record], index: int) -> bool:
    """Return whether the gradients of a tensor differ across ranks by more than rounding."""
    values = [record["gradients"][index] for record in records]
    if len({record["bits"][index] for record in records}) == 1 or None in values:
        return None in values and any(value is not None for value in values)
    gap = max(_compute_norm([_subtract(values[0], value)]) for value in values[1:])
    total = max(_compute_norm(record["gradients"]) for record in records)
    return gap > max(1e-5 * max(_compute_norm([value]) for value in values), 1e-9 * total)


def _fit_factor(pairs: Iterable[tuple[Sketch | None, Sketch | None]]) -> tuple[float, float]:
    """Return the factor that best scales the single process's gradients to the ranks', and the relative residual.

    A pair is the gradient of a tensor on the ranks and in the single process.
    """
    both = [(ours, other) for ours, other in pairs if ours and other]
    norm = _compute_norm(ours for ours, _ in pairs)
    square = math.fsum(y * y for _, other in both for y in other)
    if not square:
        return 1.0, 1.0 if norm else 0.0
    factor = math.fsum(x * y for ours, other in both for x, y in zip(ours, other, strict=True)) / square
    return factor, _compute_norm([_subtract(ours, other, factor) for ours, other in both]) / (norm or 1.0)
