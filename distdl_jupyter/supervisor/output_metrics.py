"""Parses metrics and progress from the output of ranks, for code that reports nothing itself.

``_BARS`` and ``_POSITIONS`` list the supported formats of the step, the total and the epoch. Values are pairs of a name
and a number. Bars, dicts and JSON objects yield all their pairs; other text yields only the names of ``_STRONG_NAME``,
and those of ``_WEAK_NAME`` if the line also contains a step or an epoch. ``_Axis`` combines them into one step axis,
which continues when the steps restart with each epoch.

All patterns run in time linear in the line's length, because repetitions are bounded.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

#: Maximum number of distinct metric names of a job, and of characters of a parsed line.
MAX_NAMES, MAX_LINE_CHARS = 30, 2000
#: Each parsed line contains one of these marks: loss, acc(uracy), step, epoch, iteration, and the bars of tqdm and of
#: Keras and rich. Omitting the first letters avoids searching for two cases.
_MARKS = ("oss", "acc", "Acc", "tep", "poch", "tera", "%|", "\N{BOX DRAWINGS HEAVY HORIZONTAL}")
#: Characters of a rank's output parsed per second (also the initial allowance), and the cost of a line with a mark in
#: characters. Of busy output only the newest lines are parsed, which takes about 1 % of a CPU.
_CHARS_PER_SECOND, _LINE_COST = 60_000, 240
#: Colour sequences (ECMA-48, SGR).
_COLOURS = re.compile(r"\x1b\[[\d;:]*m")

_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[nN]a[nN]|NAN|[iI]nf(?:inity)?|INF)(?!\w|\.\d)"
_STRONG_NAME = re.compile(r"loss(?![a-z])|(?<![a-z])(?:acc|accuracy|perplexity|ppl)(?![a-z])", re.IGNORECASE)
_WEAK_NAME = re.compile(
    r"(?<![a-z])(?:lr|learning_rate|grad_norm|reward|return|score|f1|auc|mae|mse|rmse|mape|bleu|rouge|wer|cer|m?iou|psnr|"
    r"mfu|error|(?:samples|images|img|examples|tokens|tok)(?:/s|/sec|_per_second))(?![a-z])",
    re.IGNORECASE,
)
#: A name and a number in text; preceding words qualify the name.
_PAIR = re.compile(
    r"(?<![\w@./%-])(?:(train|training|val|valid|validation|test|eval|dev|lm|total|avg|average|mean)[ _]{1,2})?"
    rf"([A-Za-z][\w@./%-]{{0,59}})(?:\s{{0,8}}[:=]\s{{0,8}}|\s{{1,8}})\[?({_NUMBER})(?:/(\d{{1,15}}))?",
    re.IGNORECASE,
)
#: Names and numbers in the bars of tqdm, Keras and rich; these names are used unchanged.
_POSTFIX = re.compile(rf"[,\[] ?([^\s,=\[\]]{{1,60}})=({_NUMBER})")
_DASH_PAIR = re.compile(rf" - ([^\s:]{{1,60}}): ({_NUMBER})")
_SPACE_PAIR = re.compile(rf" ([^\s:]{{1,60}}): ({_NUMBER})")
#: A flat dict or JSON object, and its pairs; Hugging Face writes numbers as strings.
_OBJECT = re.compile(r"\{\s?['\"][^{}]{1,2000}\}")
_ITEM = re.compile(rf"(['\"])([^'\"\\]{{1,80}})\1\s?:\s?(['\"]?)({_NUMBER})\3\s?[,}}]")
#: Keys of a dict that are not metrics.
_NON_METRIC_NAME = re.compile(
    r"(?:time|timestamp|ts|date|level|line|lineno|pid|rank|local_rank|node|world_size|seed|total_flos|version|v_num|"
    r"max_steps|num_.*|.*_runtime|.*_id)"
)
_STEP_NAMES = ("step", "global_step", "steps", "iteration", "iter")

_WORD = r"(?:global[_ ])?(?:steps?|iterations?|iters?|batch)"
#: Progress bars: the position, and the text after it.
_BARS = (
    # tqdm:  37%|###7      | 37/100 [00:03<00:06,  9.90it/s, loss=0.42]   and   37it [00:03,  9.90it/s, loss=0.42]
    (re.compile(r"%\|[^|]{0,400}\| ?(?P<step>\d{1,15})/(?P<total>\d{1,15}) (?=\[)"), _POSTFIX),
    (re.compile(r"%\|[^|]{0,400}\|(?= ?\d)"), _POSTFIX),  # for example of 37.0M/100M
    (re.compile(r"(?:^|[ :])(?P<step>\d{1,15})it (?=\[)"), _POSTFIX),
    # Keras 2 and 3:  37/100 [===>....] - ETA: 1s - loss: 0.31   37/100 ━━━━━━ 1s 9ms/step - loss: 0.31
    (re.compile(
        r"^\s{0,20}(?P<step>\d{1,15})/(?P<total>\d{1,15}) (?:\[[=>.]{1,200}\]|\u2501{1,200}|(?=- \d{1,9}m?s ))"
    ), _DASH_PAIR),
    # rich, as Lightning draws it:  Epoch 0/4 ━━━━╸━━━ 37/100 0:00:03 • 0:00:06 9.90it/s v_num: 0 train_loss: 0.42
    (re.compile("[\u2501\u2578\u257a] {1,200}(?P<step>\\d{1,15})/(?P<total>\\d{1,15}) "), _SPACE_PAIR),
)  # fmt: skip
#: Epoch 3, Epoch [3/10], Epoch: [3][...]
_EPOCH = re.compile(
    r"epoch[ :=#]{0,3}[\[(]?\s{0,4}(?P<epoch>\d{1,9})(?!\d|\.\d)(?:\s?/\s?(?P<epochs>\d{1,9}))?", re.IGNORECASE
)
#: The heading of an epoch.
_HEADING = re.compile(r"^\s{0,8}Epoch (?P<epoch>\d{1,9})(?:/(?P<epochs>\d{1,9}))?:?\s{0,8}$")
_POSITIONS = (
    # [640/60000 (1%)]   [   64/60000]   [0][  10/5005]
    re.compile(r"\[\s{0,12}(?P<step>\d{1,15})/(?P<total>\d{1,15})\s{0,4}(?:\(\s{0,4}\d{1,3}%\))?\]"),
    # step 20   Step [20/100]   iteration       10/     100   steps: 10   step=10   iter 100:
    re.compile(
        rf"(?<![a-z]){_WORD}[ :=#]{{0,12}}[\[(]?\s{{0,12}}(?P<step>\d{{1,15}})(?!\d|\.\d|%)"
        r"(?:\s{0,12}(?:/|of)\s{0,12}(?P<total>\d{1,15}))?", re.IGNORECASE,
    ),
    # [1,  2000] loss: 2.173
    re.compile(r"^\s{0,8}\[(?P<epoch>\d{1,9}),\s{0,12}(?P<step>\d{1,15})\]"),
)  # fmt: skip
#: The split of a line with this prefix; training has no prefix.
_SPLIT = re.compile(
    r"\s{0,8}(?:[*=>#-]{1,20} ?)?(val|valid|validation|test|testing|eval|evaluation|dev)(?![a-z_])", re.IGNORECASE
)
_SPLITS = {
    "valid": "val",
    "validation": "val",
    "testing": "test",
    "evaluation": "eval",
    "average": "avg",
    "training": "train",
}
_AVERAGES = ("avg", "mean")


class LineReading(NamedTuple):
    """The content of one line: values at a step (possibly none), and the rank's progress as done, total and unit."""

    step: float
    values: dict[str, float]
    progress: tuple[float, float, str] | None = None
    #: Whether the line is a progress bar.
    is_bar: bool = False


class _Position(NamedTuple):
    """The training position in a line."""

    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    is_bar: bool = False


class OutputMetrics:
    """Reads the lines of the ranks of one job."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._axes: dict[int, _Axis] = {}

    def read(self, rank: int, text: str) -> Iterator[LineReading]:
        """Yield the readings of a rank's lines in order; ``text`` has no trailing newline."""
        axis = self._axes.get(rank) or self._axes.setdefault(rank, _Axis())
        for coloured in axis.select_lines(text):
            line = _COLOURS.sub("", coloured)
            if (heading := _HEADING.match(line)) is not None:
                axis.epoch = int(heading["epoch"])
                axis.epochs = int(heading["epochs"]) if heading["epochs"] else None
                continue
            position, values = _parse(line)
            for name in values:
                if len(self._names) < MAX_NAMES:
                    self._names.add(name)
            values = {name: value for name, value in values.items() if name in self._names}
            # A bar without values may count anything, so it is progress but not a training step.
            step = axis.locate(position, values, has_split=_SPLIT.match(line) is not None) if values else 0.0
            progress = axis.compute_progress(position) if values or position.is_bar else None
            if values or progress is not None:
                yield LineReading(step, values, progress, position.is_bar)

    def reset_steps(self) -> None:
        """Reset the steps of all ranks."""
        self._axes.clear()


@dataclass(slots=True)
class _Axis:
    """The step axis of one rank: joins the steps in its lines into one axis that continues across epochs."""

    #: Characters of the rank's output that may be parsed now, and when this number was updated.
    allowance: float = _CHARS_PER_SECOND
    allowed_at: float = field(default_factory=time.monotonic)
    #: The epoch in the last heading, and the number of the first epoch, 0 or 1.
    epoch: float | None = None
    epochs: int | None = None
    first_epoch: float | None = None
    #: Steps per epoch, if lines contain it; a smaller total counts something else, such as validation steps or epochs.
    total: int = 0
    #: The training position on the axis (None before any line with a step), and the step in that line.
    axis_step: float | None = None
    last_step: int | None = None
    stride: int = 1
    offset: float = 0.0
    #: The step of the last value of each metric.
    last_steps: dict[str, float] = field(default_factory=dict)
    #: Total of the count shown as progress, 0 if there is none: the outermost bar is drawn first.
    progress_total: int = 0

    def select_lines(self, text: str) -> list[str]:
        """Return the lines that contain a mark, in order; only the last ones if there are too many."""
        now = time.monotonic()
        self.allowance = min(_CHARS_PER_SECOND, self.allowance + (now - self.allowed_at) * _CHARS_PER_SECOND)
        self.allowed_at, limit = now, int(self.allowance)
        if limit < _LINE_COST:
            return []
        if len(text) > limit:
            text = text[text.find("\n", len(text) - limit - 1) + 1 :] if "\n" in text[-limit:] else ""
        spans: dict[int, int] = {}
        for mark in _MARKS:
            index = text.find(mark)
            while index >= 0:
                begin, end = text.rfind("\n", 0, index) + 1, text.find("\n", index)
                spans[begin] = end = len(text) if end < 0 else end
                index = text.find(mark, end)
        lines = [text[begin:end] for begin, end in sorted(spans.items()) if end - begin <= MAX_LINE_CHARS]
        lines = lines[-(limit // _LINE_COST) :]
        self.allowance -= len(text) + len(lines) * _LINE_COST
        return lines

    def locate(self, position: _Position, names: Iterable[str], *, has_split: bool) -> float:
        """Return the step of a line's values on the axis. Values without a training step get the current position.

        This is the epoch if no line had a step, but at least the position after the last value of the same name.
        """
        is_other_axis = has_split or (position.total or self.total) < self.total
        if position.step is not None and not (is_other_axis and self.axis_step is not None):
            point = self._advance(position.step, position.total, self._count_finished_epochs(position))
        else:
            reached = position.epoch if self.axis_step is None else self.axis_step
            last = max((self.last_steps[name] for name in names if name in self.last_steps), default=-1.0)
            point = last + 1 if reached is None or reached <= last else reached
        self.last_steps.update(dict.fromkeys(names, point))
        return point

    def _count_finished_epochs(self, position: _Position) -> float | None:
        """Return the number of finished epochs, or None if unknown."""
        epoch = self.epoch if position.epoch is None else position.epoch
        if epoch is None:
            return None
        if self.first_epoch is None or epoch < self.first_epoch:
            self.first_epoch = min(1.0, epoch)
        return epoch - self.first_epoch

    def _advance(self, step: int, total: int | None, finished_epochs: float | None) -> float:
        self.total = max(self.total, total or 0)
        if finished_epochs is not None and total is not None:
            self.offset = finished_epochs * total
        elif self.last_step is not None and self.axis_step is not None and step < self.last_step:
            self.offset = self.offset + total if total is not None else self.axis_step + self.stride - step
        elif self.last_step is not None and step > self.last_step:
            self.stride = step - self.last_step
        self.last_step, self.axis_step = step, self.offset + step
        return self.axis_step

    def compute_progress(self, position: _Position) -> tuple[float, float, str] | None:
        """Return done, total and unit of a line with a total; None for other lines and for inner bars."""
        epoch, epochs = (position.epoch, position.epochs) if position.epoch is not None else (self.epoch, self.epochs)
        first = min(1.0, epoch or 0.0) if self.first_epoch is None else self.first_epoch
        # If epochs are counted from 0, the last of ten is "9/9".
        finished, count = (0.0, 1.0) if epoch is None or epochs is None else (epoch - first, epochs + 1 - first)
        if position.step is None or not position.total:
            return (finished + 1, count, "epochs") if position.epoch is not None and position.epochs else None
        if self.progress_total not in (0, position.total) or (self.progress_total == 0 == position.step):
            return None
        self.progress_total = position.total if position.step < position.total else 0
        if finished >= count:
            finished, count = 0.0, 1.0
        return finished * position.total + position.step, count * position.total, "steps"


def _parse(line: str) -> tuple[_Position, dict[str, float]]:
    """Return the position and the values in a line."""
    for pattern, pair in _BARS:
        bar = pattern.search(line)
        if bar is not None:
            epoch = _EPOCH.search(line, 0, bar.end())
            numbers = {name: float(number) for name, number in pair.findall(line, bar.end())}
            values = {name: value for name, value in numbers.items() if not _NON_METRIC_NAME.fullmatch(name)}
            return _build_position(epoch, bar, is_bar=True), values
    match = _OBJECT.search(line)
    if match is not None:
        return _parse_object(match[0])
    return _parse_text(line)


def _parse_object(text: str) -> tuple[_Position, dict[str, float]]:
    items = {name: float(number) for _, name, _, number in _ITEM.findall(text)}
    step = next((items[name] for name in _STEP_NAMES if name in items), None)
    epoch = items.get("epoch")
    has_position = step is not None or epoch is not None
    candidates = {name: value for name, value in items.items() if name not in _STEP_NAMES and name != "epoch"}
    values = {name: value for name, value in candidates.items() if not _NON_METRIC_NAME.fullmatch(name)}
    if not any(_STRONG_NAME.search(name) or (has_position and _WEAK_NAME.search(name)) for name in values):
        return _Position(), {}
    whole = int(step) if step is not None and step.is_integer() and abs(step) < 1e15 else None
    return _Position(step=whole, epoch=epoch if epoch is not None and abs(epoch) < 1e15 else None), values


def _parse_text(line: str) -> tuple[_Position, dict[str, float]]:
    pairs = _PAIR.findall(line)
    if not any(_STRONG_NAME.search(name) or _WEAK_NAME.search(name) for _, name, _, _ in pairs):
        return _Position(), {}
    epoch = _EPOCH.search(line)
    start = epoch.end() if epoch is not None else 0
    step_match = next((match for pattern in _POSITIONS if (match := pattern.search(line, start))), None)
    position, has_position = _build_position(epoch, step_match), epoch is not None or step_match is not None
    split = _SPLIT.match(line)
    prefix = "" if split is None else _SPLITS.get(split[1].lower(), split[1].lower())
    values: dict[str, float] = {}
    for leading_word, name, number, total in pairs:
        if _STRONG_NAME.search(name) or (has_position and _WEAK_NAME.search(name)):
            # The name is built from the line's split, the word before the name and the name.
            qualifier = _SPLITS.get(leading_word.lower(), leading_word.lower())
            qualifier = "" if prefix and qualifier in _AVERAGES else qualifier
            split_name = "" if prefix == qualifier or name.lower().startswith(prefix) else prefix
            value = float(number) / float(total) if total and float(total) else float(number)
            values.setdefault("_".join(part for part in (split_name, qualifier, name.lower()) if part), value)
    return position, values


def _build_position(*matches: re.Match[str] | None, is_bar: bool = False) -> _Position:
    fields: dict[str, int] = {}
    for match in matches:
        if match is not None:
            fields.update({name: int(text) for name, text in match.groupdict().items() if text is not None})
    return _Position(**fields, is_bar=is_bar)
