"""The launch form as a pure function: what is chosen goes in, the whole form comes out.

Nothing is kept between two calls but what was seen elsewhere (clusters, prices), which has memories of its own.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from distdl_jupyter import azure
from distdl_jupyter.clusters import cluster_configs
from distdl_jupyter.core import registry, space
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobNotFound
from distdl_jupyter.core.humanize import size
from distdl_jupyter.core.options import ABOUT
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.spec import Captured, JobSpec
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.form import checks, datarows
from distdl_jupyter.form import choices as offered
from distdl_jupyter.form import cluster as clusters
from distdl_jupyter.form import magic as magics
from distdl_jupyter.form.magic import MAGICS, SWEEP
from distdl_jupyter.form.schema import (
    CapturedSize,
    CapturedSizes,
    Chosen,
    CostNow,
    FormCheck,
    FormChoices,
    FormRequest,
    FormState,
    FormTitle,
    Variable,
)
from distdl_jupyter.form.target import Look, Target, wanted_backend
from distdl_jupyter.jobs import job_list
from distdl_jupyter.node.headroom import cores
from distdl_jupyter.preflight import Advice, PastJob, advise

if TYPE_CHECKING:
    from distdl_jupyter.clusters.base import Cluster
    from distdl_jupyter.clusters.status import CachedStatus
    from distdl_jupyter.views.job_table import JobRow

#: The variable of a job, and of a sweep, where the cell names none.
_JOB, _FOUND = "job", "found"
_USE_GPU = {"": None, "yes": True, "no": False}


#: Seconds that an answer waits for a cluster that is polled for the first time.
CLUSTER_TIMEOUT = 1.0


@dataclass(frozen=True, slots=True)
class Line:
    """The parsed magic line of a cell: ``chosen`` fields and environment variables.

    ``kept`` are its arguments without a field, and ``own`` those that only this magic accepts: ``%%sweep`` if
    ``is_sweep``. ``problem`` is why the line cannot be parsed.
    """

    chosen: Mapping[str, Any] = field(default_factory=dict)
    environment_variables: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    variable: str = _JOB
    is_sweep: bool = False
    problem: DistDLError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a form is about, and what it begins with.

    ``magic`` is the cell magic that is written, ``code`` the text of a cell without its magic line, ``directory`` the
    folder of local paths, "" for the one that the job will work in.
    """

    target: Target
    line: Line
    magic: str = MAGICS[0]
    code: str = ""
    directory: str = ""
    timeout: float = CLUSTER_TIMEOUT


def state(form: Form, request: FormRequest) -> FormState:
    """Return the form as it follows from what was chosen; without that, from what it begins with."""
    look, choices = form.target.look(), offered.choices()
    variables = variables_of(form, request)
    chosen = request.chosen or _begun(form, look, choices)
    chosen = _unsigned(chosen)
    if request.apply:
        chosen, look = _applied(form, chosen, look, request.apply)
    seen = _cluster(form, chosen, fresh=request.again)
    gpus = gpus_per_node(chosen, seen)
    if chosen.automatic:
        chosen = _with(chosen, process_count_per_node=max(1, gpus))
    costs = _cost(chosen)
    cluster = _cluster_type(chosen.compute_target)
    directory = Path(form.directory or look.working_directory or Path.cwd())
    options = submit_options(chosen, variables, look)
    data_checks = checks.data(chosen.data, chosen.outputs, directory, cluster)
    checked = checks.run(look.draft, look.error, options, (*data_checks, *checks.sweep(chosen.sweep)))
    problems = _problems(checked.items)
    if form.line.problem:
        problems["line"] = f"{form.line.problem} Submitting replaces the line."
    magic, cell = _code(form, chosen, options)
    advice = _advice(chosen, look, costs)
    return FormState(
        chosen=chosen,
        choices=choices,
        title=FormTitle(look.function, look.cell, look.file),
        gpu_count=gpus,
        environment=_environment(variables),
        captured=_captured(look.draft.captured if look.draft else (), known=look.known),
        checks=checked,
        advice=tuple(replace(one, reason=_unbroken(one.reason)) for one in advice),
        global_batch=float(look.training.batch_size or 0) * chosen.process_count,
        magic=magic,
        cell=cell,
        problems=problems,
        place=clusters.state_of(seen),
        mounts=cluster is not None and cluster.mounts,
        cost=costs,
        options=_without_secrets(options),
        code=form.code,
    )


def _with(chosen: Chosen, **changes: Any) -> Chosen:
    return msgspec.structs.replace(chosen, **changes)


# What it begins with, and what changes it -----------------------------------------------------------


def _begun(form: Form, look: Look, choices: FormChoices) -> Chosen:
    """Return what is chosen to begin with: what was given, and what suits the code and this machine."""
    given = dict(form.line.chosen)
    asked, backend = given.pop("process_count_per_node", None), given.pop("distributed_backend", "")
    chosen = Chosen(**{"name": look.name, **given})
    gpus = 0 if isinstance(asked, int) else gpus_per_node(chosen, _cluster(form, chosen))
    automatic = asked == "auto" or (asked is None and gpus > 0)
    count = asked if isinstance(asked, int) else max(1, gpus) if automatic else min(2, cores())
    chosen = _with(chosen, automatic=automatic, process_count_per_node=count)
    likely = offered.likely_backend(choices.backends, wanted_backend(look.training.code), chosen.process_count)
    return _with(chosen, distributed_backend=backend or likely)


def _unsigned(chosen: Chosen) -> Chosen:
    return _with(chosen, data=datarows.kept(chosen.data), outputs=datarows.unsigned(chosen.outputs))


def variables_of(form: Form, request: FormRequest) -> dict[str, str]:
    """Return the environment variables with their values; a value of None is the one that was given at first."""
    given = form.line.environment_variables
    if request.environment is None:
        return dict(given)
    named = [one for one in request.environment if one.name]
    return {one.name: given.get(one.name, "") if one.value is None else one.value for one in named}


def _applied(form: Form, chosen: Chosen, look: Look, code: str) -> tuple[Chosen, Look]:
    """Follow one advice; an unknown code changes nothing."""
    spoken = _advice(chosen, look, _cost(chosen))
    change = next((dict(one.change) for one in spoken if one.code == code), {})
    rates = change.pop("kwargs", None)
    if "process_count_per_node" in change:
        change["automatic"] = False
    if rates:
        form.target.pass_rates(rates)
        look = form.target.look()
    return _with(chosen, **change), look


# What follows ---------------------------------------------------------------------------------------


def _cluster(form: Form, chosen: Chosen, *, fresh: bool = False) -> CachedStatus | None:
    return clusters.poll(chosen.compute_target, chosen.distributed_backend, form.timeout, fresh=fresh)


def gpus_per_node(chosen: Chosen, seen: CachedStatus | None) -> int:
    """Return the GPUs that "one per GPU" means: those of the chosen size, else of the cluster's nodes; 0 without."""
    if chosen.use_gpu == "no":
        return 0
    if chosen.vm_size:
        return azure.find(chosen.vm_size).whole_gpus
    return checks.gpus() if seen is None else clusters.gpus_per_node(seen)


def _cost(chosen: Chosen) -> CostNow | None:
    nodes = clusters.rented(chosen.compute_target, chosen.vm_size)
    return clusters.cost_of(nodes, chosen.price_per_hour, chosen.node_count)


def _cluster_type(name: str) -> Cluster | None:
    """Return the cluster's class, None where it is unknown or cannot be loaded."""
    try:
        cluster: Cluster = registry.get("clusters", cluster_configs.find(name).kind)
    except DistDLError:
        return None
    return cluster


def submit_options(chosen: Chosen, variables: Mapping[str, str], look: Look) -> dict[str, Any]:
    """Return what ``submit`` gets, under the primary names; None for what is as by default."""
    written = {
        "name": chosen.name.strip() or look.name,
        "environment_variables": dict(variables) or None,
        "use_gpu": _USE_GPU[chosen.use_gpu],
        "metrics_from_output": None if chosen.metrics_from_output else False,
        "data": datarows.words(chosen.data) or None,
        "outputs": chosen.outputs.strip() or None,
        **{name: _typed(name, chosen.other_options.get(name)) for name in offered.other_options()},
    }
    same = {name: getattr(chosen, name) or None for name in ABOUT if name in Chosen.__struct_fields__}
    return {**same, **written, **_backend_options(chosen)}


def _typed(name: str, value: Any) -> Any:
    """Return the value of an option as it was typed, None for nothing; ids and such are separated by commas."""
    if isinstance(value, str):
        value = tuple(filter(None, map(str.strip, value.split(",")))) if ABOUT[name].repeats else value.strip()
    return None if value in ("", ()) else value


def _backend_options(chosen: Chosen) -> dict[str, Any]:
    return {name: value for name, value in chosen.backend_options.items() if value not in (None, "")}


def _without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in options.items() if value is not None}
    variables = found.pop("environment_variables", {})
    shown = {name: value for name, value in variables.items() if not is_secret(name, value)}
    return {**found, **({"environment_variables": shown} if shown else {})}


def _code(form: Form, chosen: Chosen, options: Mapping[str, Any]) -> tuple[str, str]:
    """Return the equivalent magic line, and the cell with it; both leave out invalid values."""
    readable = {"data": datarows.readable(chosen.data), "outputs": datarows.readable_target(chosen.outputs)}
    said = {**options, **readable, "plugin_options": _backend_options(chosen)}
    varied = " ".join(chosen.sweep.split())
    kept = [*form.line.kept, *(form.line.own if form.line.is_sweep == bool(varied) else ())]
    variable = form.line.variable
    if not varied:
        line = magics.line(said, {_FOUND: _JOB}.get(variable, variable), form.magic, kept)
        return line, form.target.cell(line)
    plan = plan_of(chosen)
    with contextlib.suppress(InvalidSpec):
        if found := form.target.sweep(space.of_line(varied)[0], plan, said):
            return found
    words = [word for name, value in plan.items() for word in magics.flag_words(name, value)]
    line = magics.line(said, {_JOB: _FOUND}.get(variable, variable), f"{SWEEP} {varied}", [*words, *kept])
    return line, form.target.cell(line)


def plan_of(chosen: Chosen) -> dict[str, Any]:
    """Return how many trials a sweep has and such, what was chosen of it."""
    plan = {"trials": chosen.trials, "metric": chosen.metric.strip(), "parallel": chosen.parallel}
    return {name: value for name, value in plan.items() if value}


def _advice(chosen: Chosen, look: Look, costs: CostNow | None) -> Sequence[Advice]:
    nodes = clusters.rented(chosen.compute_target, chosen.vm_size)
    request = replace(
        look.training,
        node_count=chosen.node_count,
        process_count_per_node=chosen.process_count_per_node,
        distributed_backend=chosen.distributed_backend,
        compute_target=chosen.compute_target,
        vm_size=azure.find(chosen.vm_size) if chosen.vm_size else None,
        use_gpu=_USE_GPU[chosen.use_gpu],
        name=chosen.name,
        cores=cores(),
        gpus=checks.gpus(),
        bills=nodes.bills,
        rate=costs.words if costs else "",
        interruptible=nodes.interruptible,
        max_run_duration_seconds=chosen.max_run_duration_seconds or None,
    )
    return advise(request, azure.catalogue(), past_jobs())


# earlier jobs -----------------------------------------------------------------------------------------

#: Earlier jobs that the advice compares with. Their values are read from their folders.
_NEWEST = 100


def past_jobs() -> list[PastJob]:
    """Return the newest jobs of this user, newest first."""
    store = JobStore()
    newest = [listed.row for listed in job_list.here().known()[:_NEWEST]]
    return [job for row in newest for job in _past(row, store)]


def _past(row: JobRow, store: JobStore) -> Iterator[PastJob]:
    with contextlib.suppress(JobNotFound):
        spec = store.folder(row.id).spec()
        yield PastJob(
            id=row.id,
            name=row.name,
            process_count=spec.process_count,
            code=spec.source.code,
            arguments=_values(spec),
            completed=row.state == "completed",
            seconds=None if row.ended is None else row.ended - row.created,
        )


def _values(spec: JobSpec) -> tuple[str, ...]:
    """Return what differs between two runs of the same code: captured values and command-line arguments."""
    values = sorted(f"{item.name}: {item.detail}" for item in spec.captured if item.kind not in ("function", "class"))
    return (*values, *spec.script_arguments)


# how a page shows it ----------------------------------------------------------------------------------

_BREAKS = re.compile(r"(?<=\d) (?=(?:GB|Gb/s|min|h|s)\b)| (?=\N{MULTIPLICATION SIGN})|(?<=\N{MULTIPLICATION SIGN}) ")


def _captured(items: Sequence[Captured], *, known: bool = True) -> CapturedSizes:
    """Return the captured names with their sizes and the size of all; they are unknown when not ``known``."""
    sizes = tuple(CapturedSize(item.name, item.detail, size(item.size)) for item in items)
    return CapturedSizes(known, size(sum(item.size for item in items)), sizes)


def _environment(variables: Mapping[str, str]) -> tuple[Variable, ...]:
    """Return the variables; a value is None where it is a secret, by its name or its form."""
    return tuple(_variable(name, value, secret=is_secret(name, value)) for name, value in variables.items())


def _variable(name: str, value: str, *, secret: bool) -> Variable:
    return Variable(name, None if secret else value, secret)


def _unbroken(text: str) -> str:
    """Return a sentence whose numbers stay on one line with their units."""
    return _BREAKS.sub("\N{NO-BREAK SPACE}", text)


#: Which field of the page an error is shown beside, by the name of the option where that differs.
_BESIDE = {"environment_variables": "environment"}


def _problems(items: Sequence[FormCheck]) -> dict[str, str]:
    """Return the first error of each field, from the checks' items; those without a field are left out."""
    found: dict[str, str] = {}
    for item in items:
        if item.level == "error" and item.field:
            name = _BESIDE.get(item.field, item.field)
            found.setdefault(name, f"{item.text} {item.remedy}".strip())
    return found
