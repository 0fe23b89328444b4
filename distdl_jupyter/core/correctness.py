"""Compares the first training steps of several ranks with each other and with one process that had all their samples.

What is compared was recorded by ``worker.hooks.check``: ``check/rank-<n>.json`` of a job's folder has, beside facts of
loaders, layers and weights (``names``, ``shapes``), for each step::

    {"batches": [{"loader", "pass", "at", "size", "samples": [hash], "indices": []}], "inputs": [hash],
     "losses": [number], "random": bool, "unsynced": "", "no_sync" or "forward", "unsynced_line": line, "local": bool,
     "optimizers": [{"index", "rates", "before": [hash], "weights": [sketch], "gradients": [sketch or None],
                     "bits": [hash], "own": [sketch or None], "after": [hash], "weights_after": [sketch]}]}

Sketches are linear, so the sketch of a mean gradient is the mean of the sketches, and the norm of a difference is that
of the sketches' difference, to about 25 %. ``own`` are the gradients of the rank's own samples, before any averaging.

A line is ``[file or cell, number]``, or ``["", 0]`` if unknown. ``unsynced`` is the reason why the last backward pass
averaged no gradients, ``local`` is true where an optimizer stepped inside ``no_sync()``.

A consequence of another finding is not reported; the first cause comes first.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from distdl_jupyter.core.humanize import count, listing, plural

if TYPE_CHECKING:
    from pathlib import Path

Sketch = Sequence[float]
Level = Literal["error", "warning", "info"]
#: Relative differences up to which gradients are the same: sums in another order, in single and in half precision.
_SAME, _SAME_HALF = 0.02, 0.1
#: A tensor whose gradient is a smaller share of all gradients is not compared alone: it is mostly rounding.
_TINY = 1e-4
#: The share of a rank's samples that another rank has too, from which they are the same, and of the data set in a pass.
_SHARED, _WHOLE = 0.5, 0.95


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference: ``text`` describes it, ``remedy`` says how to fix it, ``example`` is the fix as code.

    ``step`` is from 0; ``tensor`` is the name of a parameter; ``size`` is relative (0.5: by half). ``file`` (a path or
    the name of a cell) and ``line`` locate it in the user's code. A field that does not apply or is unknown is
    None or "".
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
    def place(self) -> str:
        """Return the location in the user's code, such as "train.py, line 12", or "" if it is unknown."""
        return f"{self.file}, line {self.line}" if self.file else ""


@dataclass(slots=True)
class Comparison:
    """The result of a comparison. ``compared`` lists what was compared, ``left_out`` what was not and why."""

    processes: int
    steps: int
    findings: list[Difference] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Return whether steps were compared without an error or a warning."""
        return self.steps > 0 and all(finding.level == "info" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**dataclasses.asdict(self), "is_right": self.is_right}


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a job's ranks, in order of ranks."""
    records = []
    for path in (folder / "check").glob("rank-*.json"):
        try:
            records.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    return sorted(records, key=lambda record: record["rank"])


def note(folder: Path) -> Path:
    """Return the file in which a check names its run on one process: ``{"single": id}``."""
    return folder / "check" / "single.json"


def single(folder: Path) -> str:
    """Return the id of the single-process run of a job's check, or "" if there is none."""
    try:
        return str(json.loads(note(folder).read_text(encoding="utf-8"))["single"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def compare(ranks: Sequence[Mapping[str, Any]], one: Mapping[str, Any] | None = None) -> Comparison:
    """Compare the records of all ranks, and that of ``one`` process which trained on all their samples."""
    steps = min((len(rank["steps"]) for rank in ranks), default=0)
    comparison = Comparison(len(ranks), steps)
    if problem := next((rank["problem"] for rank in ranks if rank.get("problem")), ""):
        comparison.left_out.append(f"A rank could not be recorded to the end ({problem}).")
    if not steps:
        sharded = next((rank["sharded"] for rank in ranks if rank.get("sharded")), "")
        comparison.left_out.append(_divided(sharded) if sharded else
                              "No step of a torch optimizer was recorded, so there is nothing to compare.")  # fmt: skip
        return comparison
    _Ranks(ranks, one, comparison).compare()
    return comparison


class _Ranks:
    """One comparison."""

    def __init__(
        self, ranks: Sequence[Mapping[str, Any]], single_process: Mapping[str, Any] | None, comparison: Comparison
    ) -> None:
        self._ranks, self._one, self._found = ranks, single_process, comparison
        self._size = len(ranks)
        self._steps = comparison.steps
        half = any("16" in kind for rank in ranks for kind in rank.get("dtypes", ()))
        self._same = _SAME_HALF if half else _SAME
        self._hvd = any(rank.get("horovod") for rank in ranks)

    def compare(self) -> None:
        if self._is_alone():
            return
        self._compare_samples()
        self._compare_workers()
        self._compare_augmentation()
        self._compare_order()
        if sharded := next((rank["sharded"] for rank in self._ranks if rank.get("sharded")), ""):
            self._found.left_out.append(_divided(sharded))
            return
        if not self._match():
            self._found.left_out.append(
                "The optimizers of the ranks hold different weights (as in pipeline or tensor parallel training), so "
                "weights and gradients were not compared."
            )
            return
        self._compare_start()
        averaged = self._compare_gradients()
        self._compare_one(averaged=averaged)
        self._compare_rates()

    def _add(
        self, level: Level, code: str, text: str, remedy: str = "", example: str = "", at: Any = None, **more: Any
    ) -> None:
        """Add a finding; ``at`` is the line of the user's code as it was recorded."""
        file, line = at or ("", 0)
        if file:
            more |= {"file": file, "line": line}
        self._found.findings.append(Difference(level, code, text, remedy, example, **more))

    def _line(self, name: str) -> Any:
        """Return the line of the last "forward", "backward" or "step" of rank 0."""
        return self._ranks[0].get("lines", {}).get(name)

    def _made(self, index: str) -> Any:
        """Return the line in which an optimizer was made."""
        return self._ranks[0].get("made", {}).get(index)

    def _is_alone(self) -> bool:
        """Find that a trainer on each rank knows of one process only; all else would follow from that."""
        trainer = self._ranks[0].get("trainer")
        if trainer is None or trainer["size"] != 1:
            return False
        text = (f"Lightning's {trainer['name']} uses one process on each rank, so the {count(self._size)} ranks train "
            "independently.")  # fmt: skip
        nodes = self._size // trainer["devices"]
        more = f", num_nodes={nodes}" if nodes > 1 else ""
        self._add("error", "trainer-alone", text, "Set devices to the number of processes on each node.",
                  f'{trainer["name"]}(accelerator="{trainer["accelerator"]}", devices={trainer["devices"]}{more}, '
                  'strategy="ddp")', trainer["line"])  # fmt: skip
        return True

    # samples ------------------------------------------------------------------------------------

    def _compare_samples(self) -> None:
        known = False
        for step in range(self._steps):
            samples = [_samples(rank["steps"][step]) for rank in self._ranks]
            known = known or all(samples)
            for first, second in _pairs(self._size):
                mine, others = set(samples[first]), set(samples[second])
                shared = len(mine & others)
                if not shared or _repeats(samples[first]) or _repeats(samples[second]):
                    continue
                if shared >= _SHARED * min(len(mine), len(others)):
                    text = (f"Ranks {first} and {second} train on the same samples: {count(shared)} of "
                        f"{count(len(mine))} samples in step {step} are identical.")  # fmt: skip
                    self._same_samples(text, self._loader_of(step), step=step, size=shared / len(mine))
                    return
        if any(_repeats(_samples(step)) for rank in self._ranks for step in rank["steps"]):
            self._found.left_out.append(
                "Many samples of a rank are equal to each other, so samples were not compared between ranks."
            )
        elif known:
            self._found.compared.append("the samples of each step (no two ranks train on the same one)")
            self._compare_passes()
        else:
            self._found.left_out.append("No samples were recorded on any rank, so samples were not compared.")

    def _compare_passes(self) -> None:
        """Find that each rank goes through all of the same data set, in an order of its own."""
        for loader, mine in self._ranks[0].get("loaders", {}).items():
            every = [rank.get("loaders", {}).get(loader, {}) for rank in self._ranks]
            length, size = mine.get("samples"), _batch_size(self._ranks[0], loader)
            if not self._trains(loader) or not length or any(about.get("samples") != length for about in every):
                continue
            if any((about.get("batches") or 0) * size < _WHOLE * length for about in every):
                continue
            samples = [_trained_samples(rank, loader) for rank in self._ranks]
            overlap = any(_overlap(samples[first], samples[second], length) for first, second in _pairs(self._size))
            read = [about.get("read") or [] for about in every]
            if overlap or (read[0] and all(order == read[0] for order in read)):
                text = (f"Each rank iterates over all {count(length)} samples of the data set in its own order, so an "
                    f"epoch trains on every sample {count(self._size)} times.")  # fmt: skip
                self._same_samples(text, loader)
                return
            if all(read) or all(len(rank_samples) >= _WHOLE * length for rank_samples in samples):
                continue  # the ranks read different samples, or all samples were recorded
            text = (f"Each rank iterates over {count(length)} samples. If they are the same on all ranks, an epoch "
                f"trains on every sample {count(self._size)} times. In {count(min(map(len, samples)))} recorded "
                "samples per rank, no sample occurred on two ranks.")  # fmt: skip
            self._add("info", "same-samples-possible", text, "Check whether each rank has its own part of the data.",
                      at=mine.get("line"))  # fmt: skip
            return

    def _loader_of(self, step: int) -> str:
        """Return the number of the loader whose batches a step trains on, "" where none does."""
        return next((str(batch["loader"]) for batch in self._ranks[0]["steps"][step]["batches"]), "")

    def _same_samples(self, text: str, loader: str, **more: Any) -> None:
        """Add that ranks train on the same samples, with the remedy that fits the way in which they are read."""
        about = self._ranks[0].get("loaders", {}).get(loader, {})
        if self._workers_repeat(loader):
            text += f" So do the {count(about['workers'])} workers of each rank's DataLoader."
        parts = [rank.get("loaders", {}).get(loader, {}).get("part") for rank in self._ranks]
        remedy = _DIVIDE
        if not loader:
            remedy = _DIVIDE_OWN
        elif about.get("hugging_face") and about.get("iterable"):
            remedy = _DIVIDE_HUGGING_FACE
        elif about.get("iterable"):
            remedy = _DIVIDE_STREAM
        elif about.get("sampler") == "DistributedSampler" and len({repr(part) for part in parts}) < self._size:
            text += f" The DistributedSampler has rank {parts[0][1]} of {parts[0][0]} on more than one of them."
            remedy = _DIVIDE_BY_RANK
        elif self._ranks[0].get("accelerate"):
            remedy = ("Pass the loader to accelerator.prepare().", "loader = accelerator.prepare(loader)")
        elif (self._ranks[0].get("trainer") or {}).get("name") == "Fabric":
            remedy = ("Pass the loader to fabric.setup_dataloaders().", "loader = fabric.setup_dataloaders(loader)")
        self._add("error", "same-samples", text, *remedy, at=about.get("line") or self._line("forward"), **more)

    def _compare_workers(self) -> None:
        """Find workers of one rank's loader that each read the whole stream."""
        if any(finding.code == "same-samples" for finding in self._found.findings):
            return
        for loader, about in self._ranks[0].get("loaders", {}).items():
            if self._workers_repeat(loader):
                text = (f"Each of the {count(about['workers'])} DataLoader workers of a rank reads the whole data set, "
                    f"so each rank trains on every sample {count(about['workers'])} times.")  # fmt: skip
                self._add("error", "same-samples-in-workers", text, *_DIVIDE_STREAM, at=about.get("line"))
                return

    def _workers_repeat(self, loader: str) -> bool:
        """Return whether two workers of rank 0 have read the same batch of a stream."""
        about = self._ranks[0].get("loaders", {}).get(loader, {})
        if not about.get("iterable") or about.get("workers", 0) < 2:
            return False
        batches = [batch for step in self._ranks[0]["steps"] for batch in step["batches"]]
        first = [batch["samples"] for batch in batches if str(batch["loader"]) == loader and batch["pass"] == 0]
        first = [samples for samples in first if samples and not _repeats(samples)]
        return any(first[left] == first[right] for left, right in _pairs(len(first)))

    def _compare_augmentation(self) -> None:
        """Find loaders whose samples all ranks augment with the same random numbers."""
        for loader, about in self._ranks[0].get("loaders", {}).items():
            every = [rank.get("loaders", {}).get(loader, {}) for rank in self._ranks]
            states = [entry.get("random") or {} for entry in every]
            if not self._trains(loader) or not about.get("draws"):
                continue
            workers = bool(about.get("workers"))
            same = [name for name in about["draws"]
                    if (source := "workers" if workers else name) in states[0]
                    and all(state.get(source) == states[0][source] for state in states)]  # fmt: skip
            if not same:
                continue
            names = ["torch"] if workers else same
            text = ("All ranks use the same random numbers for their samples, so sample k of each rank gets the same "
                "augmentation.")  # fmt: skip
            self._add("info", "same-augmentation", text,
                      "Add the rank to the seed after the model is built, so that all ranks still start with the same "
                      "weights.",
                      "\n".join(_SEEDS[name] for name in names), about.get("line"))  # fmt: skip
            return

    def _trains(self, loader: str) -> bool:
        return any(str(batch["loader"]) == loader for step in self._ranks[0]["steps"] for batch in step["batches"])

    def _compare_order(self) -> None:
        for loader, about in self._ranks[0].get("loaders", {}).items():
            if not about.get("shuffles") or not self._trains(loader):
                continue
            epochs = about.get("epochs", [])
            remedy = ("Call set_epoch at the start of each epoch.", "for epoch in range(epochs):\n    "
                      "sampler.set_epoch(epoch)")  # fmt: skip
            if len(epochs) > 1 and epochs[0] == epochs[1]:
                text = (
                    f"The {about['sampler']} shuffles epoch 1 in the same order as epoch 0 because set_epoch was not "
                    "called."
                )
                self._add("warning", "no-set-epoch", text, *remedy, at=about.get("loop_line"))
            elif len(epochs) == 1 and not about.get("set_epoch") and not self._ranks[0].get("trainer"):
                text = (f"set_epoch of the {about['sampler']} was not called before the first epoch. Without it, all "
                    "epochs use the same order.")  # fmt: skip
                self._add("warning", "no-set-epoch", text, *remedy, at=about.get("loop_line"))

    # weights and gradients among the ranks --------------------------------------------------------

    def _match(self) -> bool:
        shapes = [rank.get("shapes") for rank in self._ranks]
        return bool(shapes[0]) and all(rank_shapes == shapes[0] for rank_shapes in shapes)

    def _compare_start(self) -> None:
        """Find weights that are not the same on all ranks before the first step."""
        for index, names, records in self._optimizers(0):
            bad = [at for at in range(len(names)) if len({record["before"][at] for record in records}) > 1]
            if not bad:
                continue
            sizes = {at: _largest([record["weights"][at] for record in records]) for at in bad}
            worst = max(bad, key=lambda at: sizes[at])
            text = (f"The ranks start with different weights: before the first step, {_named(names, bad, worst)} by "
                f"{_percent(sizes[worst])}.")  # fmt: skip
            self._add("error", "different-start", text,
                      "Broadcast the weights of rank 0 before the first step, or use the same seed on all ranks.",
                      "hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # Horovod\nmodel = "
                      "DistributedDataParallel(model)  # torch: broadcasts the weights",
                      self._made(index), step=0, tensor=names[worst], size=sizes[worst])  # fmt: skip
            return
        self._found.compared.append("the weights before the first step (bitwise identical on all ranks)")

    def _compare_gradients(self) -> bool:
        """Find gradients that differ among the ranks; True when all ranks step with the same ones."""
        for step in range(self._steps):
            for index, names, records in self._optimizers(step):
                bad = [at for at in range(len(names)) if self._differ(records, at)]
                if not bad:
                    continue
                if self._agree_after(records):
                    self._found.left_out.append(
                        "The ranks step with different gradients but have the same weights after the step, so the "
                        "weights are averaged there. Gradients were not compared with one process."
                    )
                    return False
                if why := self._why_local(step, index):
                    self._found.left_out.append(why)
                    return False
                sizes = {at: _largest([record["gradients"][at] or [0.0] for record in records]) for at in bad}
                worst = max(bad, key=lambda at: sizes[at])
                is_local = all(
                    _close(record["gradients"][at], record["own"][at], self._same)
                    for record in records
                    for at in bad
                    if record["own"][at] is not None
                )
                why = (
                    "each rank steps with the gradient of its own samples"
                    if is_local
                    else "the ranks step with different gradients"
                )
                text = (f"Gradients are not averaged across ranks: {why}. In step {step}, {_named(names, bad, worst)} "
                    f"by {_percent(sizes[worst])}. Each rank trains its own model.")  # fmt: skip
                more: dict[str, Any] = {"step": step, "tensor": names[worst], "size": sizes[worst]}
                if (last := self._unsynced(step)) is not None:
                    self._add("error", "no-sync-on-last-backward", *last, **more)
                    return False
                at = self._made(index) if self._hvd else self._line("backward")
                self._add("error", "gradients-not-averaged", text, *self._average(), at, **more)
                return False
        self._found.compared.append("the gradients of each step (identical on all ranks)")
        self._compare_after()
        return True

    def _why_local(self, step: int, index: str) -> str:
        """Return why ranks may step with gradients of their own here, or "" if there is no reason."""
        if any(rank.get("averages_weights") for rank in self._ranks):
            return "The ranks average their weights periodically, so their gradients were not compared."
        if any(rank["steps"][step].get("local") for rank in self._ranks):
            return ("The optimizer steps inside no_sync(), as in local SGD, so gradients were not compared. If no step "
                "runs outside no_sync(), each rank trains its own model.")  # fmt: skip
        for later in range(step + 1, self._steps):
            for other, _, records in self._optimizers(later):
                if other == index and all(record["before"] == records[0]["before"] for record in records):
                    return ("The ranks step with their own gradients but have the same weights again before step "
                        f"{later}: weights are averaged periodically, so gradients were not compared.")  # fmt: skip
        return ""

    def _unsynced(self, step: int) -> tuple[str, str, str, Any] | None:
        """Return text, remedy, example and line where the last backward pass before a step averaged nothing."""
        last = next((record for rank in self._ranks if (record := rank["steps"][step]).get("unsynced")), None)
        if last is None:
            return None
        line = last["unsynced_line"]
        if last["unsynced"] == "no_sync":
            return ("The last backward pass before optimizer.step() ran under no_sync(), so the gradients of step "
                f"{step} are not averaged across ranks.",
                    "Leave no_sync() before the last micro-batch, including its forward pass.",
                    "last = (i + 1) % accumulate == 0\n"
                    "with contextlib.nullcontext() if last else model.no_sync():\n"
                    "    model(inputs).backward()", line)  # fmt: skip
        return ("The forward pass before the last backward pass ran with require_backward_grad_sync=False. "
            f"DistributedDataParallel reads it there, so the gradients of step {step} are not averaged.",
                "Set require_backward_grad_sync before the forward pass of the last micro-batch.",
                "model.require_backward_grad_sync = last\n"
                "loss = model(inputs)\n"
                "loss.backward()", line)  # fmt: skip

    def _differ(self, records: Sequence[Mapping[str, Any]], at: int) -> bool:
        if len({record["bits"][at] for record in records}) == 1:
            return False
        values = [record["gradients"][at] for record in records]
        if any(value is None for value in values):
            return True
        largest = max(map(_total, (record["gradients"] for record in records)))
        gap = max(_norm(_minus(values[0], value)) for value in values[1:])
        return gap > max(1e-5 * max(map(_norm, values)), 1e-9 * largest)

    def _agree_after(self, records: Sequence[Mapping[str, Any]]) -> bool:
        start = all(record["before"] == records[0]["before"] for record in records)
        return (
            start
            and all(record.get("after") == records[0].get("after") for record in records)
            and bool(records[0].get("after"))
        )

    def _compare_after(self) -> None:
        """Find the first step after which weights differ although the gradients were the same."""
        if any(finding.code == "different-start" for finding in self._found.findings):
            return
        for step in range(self._steps):
            for index, names, records in self._optimizers(step):
                bad = [
                    at
                    for at in range(len(names))
                    if len({record.get("after", record["before"])[at] for record in records}) > 1
                ]
                if bad:
                    sizes = {at: _largest([record["weights_after"][at] for record in records]) for at in bad}
                    worst = max(bad, key=lambda at: sizes[at])
                    rates = {tuple(record["rates"]) for record in records}
                    why = (
                        f" Their learning rates are {listing([_number(rate[0]) for rate in sorted(rates)])}."
                        if len(rates) > 1
                        else ""
                    )
                    text = (f"From step {step} on, the ranks have different weights although they step with the same "
                        f"gradients: {_named(names, bad, worst)} by {_percent(sizes[worst])}.{why}")  # fmt: skip
                    self._add("error", "weights-depart", text,
                              "Use the same optimizer settings and optimizer state on all ranks.",
                              "hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # Horovod",
                              self._made(index), step=step, tensor=names[worst], size=sizes[worst])  # fmt: skip
                    return

    def _average(self) -> tuple[str, str]:
        if self._hvd:
            return ("Wrap the optimizer in Horovod's DistributedOptimizer.",
                    "optimizer = hvd.DistributedOptimizer(\n"
                    "    optimizer, named_parameters=model.named_parameters()\n)")  # fmt: skip
        if self._ranks[0].get("accelerate"):
            return ("Pass model and optimizer to accelerator.prepare().",
                    "model, optimizer = accelerator.prepare(model, optimizer)")  # fmt: skip
        if (self._ranks[0].get("trainer") or {}).get("name") == "Fabric":
            return ("Pass model and optimizer to fabric.setup().",
                    "model, optimizer = fabric.setup(model, optimizer)")  # fmt: skip
        wrapped = "model = torch.nn.parallel.DistributedDataParallel(model)"
        if self._ranks[0].get("group") == 0:
            return ("Initialize the process group, wrap the model in DistributedDataParallel and call the wrapped "
                "model.",
                    f"torch.distributed.init_process_group()\n{wrapped}")  # fmt: skip
        return ("Wrap the model in DistributedDataParallel and call the wrapped model.", wrapped)

    # one process --------------------------------------------------------------------------------

    def _compare_one(self, *, averaged: bool) -> None:
        """Compare the steps with those of one process, as far as they are of the same samples and weights."""
        if self._one is None:
            self._found.left_out.append(
                "No single process trained on all samples, so sums and means could not be distinguished."
            )
            return
        reason = self._incomparable()
        if any(finding.code == "different-start" for finding in self._found.findings):
            reason = "the ranks started with different weights"
        if reason:
            self._found.left_out.append(f"Losses and gradients were not compared with one process: {reason}.")
        elif averaged:
            self._compare_scale()
        if self._ranks[0].get("layers"):
            self._found.left_out.append(
                f"Batch statistics ({listing(self._ranks[0]['layers'])}) are computed from each rank's own samples, as "
                "is usual."
            )

    def _incomparable(self) -> str:
        assert self._one is not None
        if not self._one.get("steps"):
            return "the single process made no step"
        if problem := self._one.get("replay_problem") or self._one.get("problem"):
            return str(problem)
        if self._one.get("shapes") != self._ranks[0].get("shapes"):
            return "the optimizer of the single process has other weights"
        steps = [rank["steps"][0] for rank in self._ranks]
        alone = self._one["steps"][0]
        if any(step["random"] for step in (*steps, alone)):
            return "the model draws random numbers (for example dropout), which differ from run to run"
        if len({len(_samples(step)) for step in steps}) > 1:
            return "the ranks have batches of different sizes but average them as if they were equal"
        have = sorted(sample for step in steps for sample in _samples(step))
        if have != sorted(_samples(alone)):
            if not alone["batches"]:
                return "the training code creates its own batches, and the single process creates other batches"
            return "the single process had other samples"
        mine, ours = alone["optimizers"], steps[0]["optimizers"]
        if [optimizer["before"] for optimizer in mine] != [optimizer["before"] for optimizer in ours]:
            return "the single process started with other weights (set a seed to compare them)"
        return ""

    def _compare_scale(self) -> None:
        assert self._one is not None
        last = min(self._steps, len(self._one["steps"]))
        compared = 0
        for step in range(last):
            if not self._same_batches(step):
                continue
            compared += 1
            for position, (_, names, records) in enumerate(self._optimizers(step)):
                alone = self._one["steps"][step]["optimizers"][position]
                if any(record["before"] != alone["before"] for record in records) or self._one["steps"][step]["random"]:
                    continue
                ours, single = records[0]["gradients"], alone["gradients"]
                factor, rest = _fit(ours, single)
                if rest > self._same:
                    self._tell_rest(step, names, ours, single, rest)
                    return
                if abs(factor - 1) > self._same:
                    self._tell_factor(step, names, factor)
                    return
        self._found.compared.append(
            "losses and gradients with a single process that had the samples of all ranks, in "
            f"{plural(compared, 'step')} (identical)"
        )

    def _same_batches(self, step: int) -> bool:
        """Return whether one process had the samples of all ranks in a step, and all ranks had equally many."""
        assert self._one is not None
        samples = [_samples(rank["steps"][step]) for rank in self._ranks]
        together = sorted(sample for rank_samples in samples for sample in rank_samples)
        return len(set(map(len, samples))) == 1 and together == sorted(_samples(self._one["steps"][step]))

    def _tell_factor(self, step: int, names: Sequence[str], factor: float) -> None:
        assert self._one is not None
        losses = [sum(rank["steps"][step]["losses"]) for rank in self._ranks]
        mean, alone = statistics.fmean(losses), sum(self._one["steps"][step]["losses"])
        more: dict[str, Any] = {"step": step, "tensor": names[0], "size": abs(factor - 1), "at": self._line("backward")}
        if (
            abs(factor * self._size - 1) < self._same * self._size
            and alone
            and abs(mean * self._size / alone - 1) < 0.05
        ):
            text = (f"The loss is a sum over samples, not their mean: in step {step} it is {_number(alone)} for all "
                f"samples and {_number(mean)} on average per rank. Averaged across ranks, gradients are "
                f"1/{self._size} of those of a single process, and change with the number of processes.")  # fmt: skip
            self._add("warning", "loss-no-mean", text,
                      "Average the loss over the samples, or sum gradients across ranks.",
                      'loss = torch.nn.functional.cross_entropy(output, target, reduction="mean")', **more)  # fmt: skip
        elif abs(factor / self._size - 1) < self._same:
            text = (f"Gradients are summed across ranks instead of averaged: in step {step}, all are "
                f"{count(self._size)} times those of a single process with the same samples.")  # fmt: skip
            remedy = "Divide the sum by the number of ranks, or use the average."
            example = ("optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Average)" if self._hvd else
                       "dist.all_reduce(p.grad)\np.grad /= dist.get_world_size()")  # fmt: skip
            self._add("error", "gradients-summed", text, remedy, example, **more)
        else:
            text = (f"Gradients in step {step} are {_number(factor)} times those of a single process with the same "
                f"samples. The loss is {_number(mean)} on average per rank and {_number(alone)} there.")  # fmt: skip
            self._add("warning", "gradients-scaled", text,
                      "Average the loss over each rank's samples, and average gradients across ranks.",
                      **more)  # fmt: skip

    def _tell_rest(
        self, step: int, names: Sequence[str], ours: Sequence[Any], single: Sequence[Any], rest: float
    ) -> None:
        gaps = {at: _relative(ours[at], single[at]) for at in range(len(names)) if ours[at] and single[at]}
        total = _total(single)
        large = {at: gap for at, gap in gaps.items() if _norm(single[at]) > _TINY * total} or gaps
        worst = max(large, key=lambda at: large[at])
        if layers := self._ranks[0].get("layers"):
            text = (f"{listing(layers)} computes its statistics from each rank's own samples, so in step {step} "
                f"gradients differ by {_percent(rest)} from a single process, most in {names[worst]}. This is "
                "usual.")  # fmt: skip
            self._add("info", "batch-norm", text, "If each rank has few samples, synchronize the statistics.",
                      "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)", self._line("forward"),
                      step=step, tensor=names[worst],
                      size=rest)  # fmt: skip
            return
        text = (f"In step {step}, gradients differ by {_percent(rest)} from those of a single process with the same "
            f"samples and weights, most in {names[worst]} ({_percent(large[worst])}).")  # fmt: skip
        self._add("error", "gradients-differ", text,
                  "Check what a rank does with its samples or gradients that a single process does not.",
                  at=self._line("step"), step=step, tensor=names[worst], size=rest)  # fmt: skip

    def _compare_rates(self) -> None:
        """Find a learning rate that was not scaled although a step has more samples than that of one process."""
        if self._one is None or not self._one.get("steps") or self._found.findings:
            return
        ours = [optimizer["rates"][0] for optimizer in self._ranks[0]["steps"][0]["optimizers"]]
        alone = [optimizer["rates"][0] for optimizer in self._one["steps"][0]["optimizers"]]
        more = self._samples_more()
        if ours and ours == alone and ours[0] and more > 1.5:
            text = (f"The learning rate is {_number(ours[0])}, the same on {count(self._size)} processes as on one, "
                "but each step has "
                f"{_number(more)} times the samples.")  # fmt: skip
            self._add("info", "rate-not-scaled", text,
                      f"The linear scaling rule (Goyal et al., 2017) suggests {_number(ours[0] * more)}, after a "
                      "warm-up.",
                      "optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * world_size)",
                      next(iter(self._ranks[0].get("made", {}).values()), None))  # fmt: skip

    def _samples_more(self) -> float:
        """Return how many times the samples of one process a step has."""
        assert self._one is not None
        ours = sum(len(_samples(rank["steps"][0])) for rank in self._ranks)
        own_size = next(
            (loader["own_size"] for loader in self._one.get("loaders", {}).values() if loader.get("own_size")), 0
        )
        alone = own_size or len(_samples(self._one["steps"][0]))
        return ours / alone if alone else 1.0

    def _optimizers(self, step: int) -> Iterator[tuple[str, list[str], list[Mapping[str, Any]]]]:
        """Yield number, names of the weights and the records of all ranks of each optimizer that has stepped."""
        for optimizer in self._ranks[0]["steps"][step]["optimizers"]:
            index = optimizer["index"]
            records = [
                next((other for other in rank["steps"][step]["optimizers"] if other["index"] == index), None)
                for rank in self._ranks
            ]
            if all(other is not None for other in records):
                yield str(index), self._ranks[0]["names"][str(index)], records  # type: ignore[misc]


_DIVIDE = (
    "Give each rank its own part of the data set.",
    "sampler = DistributedSampler(dataset, num_replicas=size, rank=rank)\n"
    "loader = DataLoader(dataset, batch_size=32, sampler=sampler)",
)
_DIVIDE_OWN = (
    "Give each rank its own part of the data set.",
    "inputs, targets = inputs[rank::size], targets[rank::size]",
)
_DIVIDE_BY_RANK = (
    "Call init_process_group before you create the sampler, and omit num_replicas and rank.",
    "sampler = DistributedSampler(dataset)",
)
#: A stream has no sampler: DataLoader refuses one.
_DIVIDE_STREAM = (
    "Let each worker of each rank skip the samples that the others read.",
    "def __iter__(self):\n"
    "    info = torch.utils.data.get_worker_info()\n"
    "    workers, worker = (info.num_workers, info.id) if info else (1, 0)\n"
    "    part, parts = rank * workers + worker, size * workers\n"
    "    return itertools.islice(self.read(), part, None, parts)",
)
_DIVIDE_HUGGING_FACE = (
    "Give each rank its own part of the data set; the workers of a rank then divide it.",
    "from datasets.distributed import split_dataset_by_node\n"
    "dataset = split_dataset_by_node(dataset, rank=rank, world_size=size)",
)
_SEEDS = {
    "torch": "torch.manual_seed(seed + rank)",
    "random": "random.seed(seed + rank)",
    "numpy": "numpy.random.seed(seed + rank)",
}


def _divided(by: str) -> str:
    return (f"The weights are sharded across ranks ({by}), so no two ranks hold the same weights. Weights and "
        "gradients were not compared.")  # fmt: skip


def _samples(step: Mapping[str, Any]) -> list[str]:
    """Return the hashes of a step's samples: those of its batches, else those that went into the model."""
    return [sample for batch in step["batches"] for sample in batch["samples"]] or list(step["inputs"])


def _repeats(samples: Sequence[str]) -> bool:
    """Return whether hashes cannot distinguish samples: most occur more than once on the same rank."""
    return len(samples) > 1 and len(set(samples)) <= len(samples) / 2


def _trained_samples(rank: Mapping[str, Any], loader: str) -> set[str]:
    """Return the hashes of the samples of a loader that a rank has trained on."""
    return {sample for step in rank["steps"] for batch in step["batches"] if str(batch["loader"]) == loader
            for sample in batch["samples"]}  # fmt: skip


def _overlap(mine: set[str], others: set[str], length: int) -> bool:
    """Return whether two ranks share about as many samples as two ranks that draw from the same data set."""
    return len(mine & others) >= max(1.0, len(mine) * len(others) / length / 2)


def _batch_size(rank: Mapping[str, Any], loader: str) -> int:
    sizes = [b["size"] for step in rank["steps"] for b in step["batches"] if str(b["loader"]) == loader]
    return max(sizes, default=0)


def _pairs(size: int) -> Iterable[tuple[int, int]]:
    return ((first, second) for first in range(size) for second in range(first + 1, size))


def _named(names: Sequence[str], bad: Sequence[int], worst: int) -> str:
    if len(bad) == 1:
        return f"{names[worst]} differs"
    which = f"all {count(len(bad))} tensors differ" if len(bad) == len(names) else (
        f"{count(len(bad))} of {count(len(names))} tensors differ")  # fmt: skip
    return f"{which}, most in {names[worst]},"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _percent(size: float) -> str:
    return f"{100 * size:.3g} %" if size < 10 else f"{size:.3g} times"


def _minus(sketch: Sketch, other: Sketch, factor: float = 1.0) -> list[float]:
    return [a - factor * b for a, b in zip(sketch, other, strict=True)] if len(sketch) == len(other) else list(sketch)


def _norm(sketch: Sketch) -> float:
    return math.sqrt(math.fsum(value * value for value in sketch))


def _total(sketches: Iterable[Sketch | None]) -> float:
    return math.sqrt(math.fsum(value * value for sketch in sketches if sketch for value in sketch))


def _relative(sketch: Sketch, other: Sketch) -> float:
    """Return the norm of the difference as a share of the larger one."""
    return _norm(_minus(sketch, other)) / (max(_norm(sketch), _norm(other)) or 1.0)


def _largest(sketches: Sequence[Sketch]) -> float:
    return max(_relative(sketches[0], sketch) for sketch in sketches[1:])


def _close(sketch: Sketch | None, other: Sketch | None, same: float) -> bool:
    return sketch is not None and other is not None and _relative(sketch, other) <= same


def _fit(ours: Sequence[Sketch | None], single: Sequence[Sketch | None]) -> tuple[float, float]:
    """Return the factor that makes one process's gradients most like the ranks', and what differs still (relative)."""
    both = [(a, b) for a, b in zip(ours, single, strict=True) if a and b]
    dot = math.fsum(x * y for a, b in both for x, y in zip(a, b, strict=True))
    square = math.fsum(y * y for _, b in both for y in b)
    if not square:
        return 1.0, 0.0 if not _total(ours) else 1.0
    factor = dot / square
    rest = _total([_minus(a, b, factor) for a, b in both])
    return factor, rest / (_total(ours) or 1.0)
