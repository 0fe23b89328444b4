"""Advice on a job before it starts: pure rules that map a request, the catalogue and past jobs to a list of advice.

Advice changes nothing itself; ``change`` contains the request fields that a click sets.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import Level
from distdl_jupyter.core.humanize import TIMES, duration, listing, number, plural, short_id
from distdl_jupyter.core.source import list_imports, try_parse
from distdl_jupyter.worker.hooks import frameworks

if TYPE_CHECKING:
    from distdl_jupyter.azure import VmSize


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice: a headline, the reason with its numbers, and the change that a click applies.

    ``change`` contains request fields with their new values, or is empty; ``snippet`` is code to add to the training,
    or ""; ``action`` is the label of the button, or "" if there is neither. ``source`` is the reference for a
    rule's number or formula.
    """

    code: str
    level: Level
    headline: str
    reason: str
    action: str = ""
    change: Mapping[str, Any] = field(default_factory=dict)
    snippet: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A job to be submitted; None and "" mean unknown.

    ``batch_size`` is per process. ``arguments`` are the values the code runs with, in any form that distinguishes two
    runs. ``cores`` and ``gpus`` are those of the local machine if ``compute_target`` is local.
    """

    node_count: int = 1
    process_count_per_node: int = 1
    distributed_backend: str = "plain"
    compute_target: str = "local"
    vm_size: VmSize | None = None
    use_gpu: bool | None = None
    name: str = ""
    code: str = ""
    arguments: tuple[str, ...] = ()
    batch_size: float | None = None
    learning_rate: float | None = None
    #: The learning rate's name in the user's code, whether it is an argument of the function (a form can set it), and
    #: whether the code already multiplies it by the world size.
    learning_rate_name: str = "lr"
    learning_rate_is_argument: bool = False
    scales_learning_rate: bool = False
    cores: int | None = None
    gpus: int | None = None
    #: Whether nodes are billed by the hour, their total price (such as "about 7.35 USD/h for 2 nodes"), and whether
    #: nodes may be preempted (low priority, Spot).
    is_billed: bool = False
    price_text: str = ""
    is_preemptible: bool = False
    max_run_duration_seconds: float | None = None

    @property
    def process_count(self) -> int:
        """World size."""
        return self.node_count * self.process_count_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """One earlier job. ``seconds`` is the time from submission to the end, or None if it is unknown."""

    id: str
    name: str
    process_count: int
    code: str = ""
    arguments: tuple[str, ...] = ()
    is_completed: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RuleInput:
    """The input of a rule. Without a ``catalogue``, no size is suggested."""

    request: Request
    catalogue: Sequence[VmSize] = ()
    history: Sequence[PastJob] = ()


# rented machines --------------------------------------------------------------------------------------

#: Suggested time limit in seconds: Amazon SageMaker's default for training jobs.
SUGGESTED_LIMIT_SECONDS = 86_400.0
LOW_PRIORITY_URL = "https://learn.microsoft.com/azure/machine-learning/how-to-create-attach-compute-cluster"


def check_checkpoints(case: RuleInput) -> Advice | None:
    """Warn if the nodes are preemptible and the code saves no checkpoints."""
    request = case.request
    if not request.is_preemptible or re.search(frameworks.SAVE_RE, request.code, re.IGNORECASE):
        return None
    return Advice(
        "no-checkpoints",
        "warning",
        "No checkpoints on preemptible nodes",
        "Low-priority and Spot nodes are cheaper but can be preempted at any time. The job then restarts from the "
        "beginning, because this code writes no checkpoints.",
        action=f"Copy {frameworks.SAVE_EXAMPLE.partition('(')[0]}(...)",
        snippet=frameworks.SAVE_EXAMPLE,
        source=LOW_PRIORITY_URL,
    )


def check_time_limit(case: RuleInput) -> Advice | None:
    """Suggest a time limit on rented nodes, where a hanging job costs money until it is stopped."""
    request = case.request
    if not request.is_billed or request.max_run_duration_seconds:
        return None
    rate = f", {request.price_text}" if request.price_text else ""
    return Advice(
        "no-time-limit",
        "info",
        "No time limit",
        f"If this job hangs, nothing stops it, and its nodes cost money for every hour{rate}.",
        action="Stop after 24 h",
        change={"max_run_duration_seconds": SUGGESTED_LIMIT_SECONDS},
    )


# training ---------------------------------------------------------------------------------------------

#: Runs shorter than this (seconds) gain little from more processes, because starting ranks takes seconds.
SMALL_JOB_SECONDS = 300.0
#: Linear scaling of the learning rate with a gradual warm-up over the first 5 epochs kept the accuracy of ResNet-50
#: on ImageNet up to a global batch of 8,192 (section 2.1, 2.2 and figure 1).
GOYAL = "Goyal et al. 2017, Accurate, Large Minibatch SGD, arXiv 1706.02677"
MAX_PROVEN_BATCH = 8192
#: Minimum number of runs of the same code with different values that count as a search.
MIN_SEARCH_RUNS = 3
_SINGLE_PROCESS_ACTION: Any = {"action": f"Use 1 {TIMES} 1", "change": {"node_count": 1, "process_count_per_node": 1}}


def suggest_learning_rate(case: RuleInput) -> Advice | None:
    """Suggest scaling the learning rate linearly with the global batch size, with a warm-up."""
    request, count = case.request, case.request.process_count
    if count < 2 or request.scales_learning_rate or request.batch_size is None:
        return None
    batch = f"The global batch grows from {number(request.batch_size)} to {number(request.batch_size * count)}."
    if request.batch_size * count > MAX_PROVEN_BATCH:
        batch += f" Above {MAX_PROVEN_BATCH:,}, accuracy dropped in the study that introduced the rule."
    if request.learning_rate is None:
        return Advice("global-batch", "info", "Global batch", f"{batch} Scale the learning rate with it.", source=GOYAL)
    name, scaled = request.learning_rate_name, _format_rate(request.learning_rate * count)
    reason = f"{batch} Linear scaling suggests {name} {_format_rate(request.learning_rate)} → {scaled} with a warm-up."
    return Advice("learning-rate", "info", "Learning rate", reason, source=GOYAL, **_get_scaling(request, name, scaled))


def _get_scaling(request: Request, name: str, scaled: str) -> dict[str, Any]:
    if request.learning_rate_is_argument:
        return {"action": f"Use {name} = {scaled}", "change": {"kwargs": {name: float(scaled)}}}
    world = registry.load_backend(request.distributed_backend, {})[0].usage.world_size
    if not world:
        return {}
    return {"action": f"Copy {name} * {world}", "snippet": f"{name} * {world}"}


def _format_rate(value: float) -> str:
    """Format a learning rate without floating-point noise: 0.1 * 3 as ``0.3``."""
    return f"{value:.6g}"


def check_job_size(case: RuleInput) -> Advice | None:
    """Advise against several processes if one process finished the job quickly."""
    request = case.request
    if request.process_count < 2:
        return None
    past_job = _find_newest_single(request, case.history)
    if past_job is None or past_job.seconds is None or past_job.seconds > SMALL_JOB_SECONDS:
        return None
    return Advice(
        "small-job",
        "info",
        "Small job",
        f"One process finished {past_job.name} in {duration(past_job.seconds)} (job {short_id(past_job.id)}). "
        f"{plural(request.process_count, 'process').capitalize()} may not be faster.",
        **_SINGLE_PROCESS_ACTION,
    )


def _find_newest_single(request: Request, history: Sequence[PastJob]) -> PastJob | None:
    """Return the newest completed single-process run of the same code, else of the same name."""
    completed = [job for job in history if job.is_completed and job.process_count == 1 and job.seconds is not None]
    matches = [job for job in completed if request.code and job.code == request.code]
    matches = matches or [job for job in completed if request.name and job.name == request.name]
    return max(matches, key=lambda job: job.id, default=None)


#: Packages for hyperparameter search, and scikit-learn's classes for it.
_SEARCH_LIBRARIES = frozenset(("optuna", "hyperopt", "ray.tune", "skopt", "nevergrad", "keras_tuner"))
_SEARCH_CLASSES = frozenset(("GridSearchCV", "RandomizedSearchCV", "ParameterGrid", "ParameterSampler"))


def suggest_search_jobs(case: RuleInput) -> Advice | None:
    """Suggest single-process jobs for hyperparameter search, which needs no gradient exchange.

    A search is assumed if the same code runs repeatedly with other values, or imports a search library.
    """
    request = case.request
    if request.process_count < 2 or not request.code:
        return None
    if tool := find_search_library(request.code):
        return _advise_search(f"This code already runs a hyperparameter search ({tool}).")
    runs = [job for job in case.history if job.code == request.code and job.process_count > 1]
    if len({job.arguments for job in runs}) < MIN_SEARCH_RUNS:
        return None
    job_ids = listing([short_id(job.id) for job in sorted(runs, key=lambda job: job.id)[-MIN_SEARCH_RUNS:]])
    reason = f"This code ran {len(runs)} times on several processes with other values, most recently as {job_ids}."
    return _advise_search(reason)


def find_search_library(code: str) -> str:
    """Return the name of a known search library that the code imports, or "" if there is none."""
    for name in list_imports(try_parse(code) or ast.Module([], [])):
        if library := next((library for library in _SEARCH_LIBRARIES if f"{name}.".startswith(f"{library}.")), ""):
            return library
        if (grid := name.rpartition(".")[2]) in _SEARCH_CLASSES:
            return grid
    return ""


def _advise_search(reason: str) -> Advice:
    return Advice(
        "settings-search",
        "info",
        "Hyperparameter search",
        f"{reason} One-process jobs that run side by side finish a search sooner: they exchange no gradients and keep "
        "the batch size.",
        **_SINGLE_PROCESS_ACTION,
        source="Databricks, Distributed training: tune on single nodes, distribute the final training",
    )
