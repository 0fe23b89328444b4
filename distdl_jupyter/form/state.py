"""The launch form as a pure function from the values of the page to the whole form.

Requests share no state except cached reads (clusters, prices), so kernel, server and a kernel's Python return the same
response. The environment (backends, GPUs, the notebook's names) is that of the responding process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from distdl_jupyter import azure, preflight
from distdl_jupyter.capture import CapturedCode
from distdl_jupyter.clusters.base import Cluster
from distdl_jupyter.clusters.status import CachedStatus
from distdl_jupyter.core import data, machine, space
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobNotFound
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.options import OPTIONS
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.spec import CodeSource, JobSpec
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.form import line
from distdl_jupyter.form.choices import (
    all_choices,
    current_cost,
    find_cluster,
    likely_backend,
    min_gpus_per_node,
    only_problems,
    poll_cluster,
    rented_nodes,
)
from distdl_jupyter.form.line import MAGICS, SWEEP
from distdl_jupyter.form.schema import (
    FormCheck,
    FormChecks,
    FormChoices,
    FormRequest,
    FormState,
    FormValues,
    Variable,
)
from distdl_jupyter.form.target import CodeInfo, KernelContext, Target, backend_of_code
from distdl_jupyter.form.values import (
    USE_GPU,
    addresses,
    backend_options,
    mask_signature,
    sweep_arguments,
    to_options,
    valid_data,
)
from distdl_jupyter.jobs import job_list, jobspec
from distdl_jupyter.node.headroom import cores
from distdl_jupyter.preflight import Advice, PastJob, advise

#: Seconds that a response waits for the first poll of a cluster.
CLUSTER_TIMEOUT = 1.0


def cell_state(
    request: FormRequest, kernel: KernelContext | None = None, directory: str = "", timeout: float = CLUSTER_TIMEOUT
) -> FormState:
    """Return the form of a text. ``directory`` is the base of local paths, "" for the current directory."""
    kernel = kernel or KernelContext({} if request.standalone else None)
    if request.refresh:
        kernel.cache.clear()
    text = line.split(request.code)
    parsed = line.read(text, kernel.defaults)
    # Another package may have registered the magic of the cell in this kernel.
    is_free = text.magic in MAGICS and kernel.magic == MAGICS[0]
    target = Target(
        line=parsed,
        magic=text.magic if is_free else kernel.magic,
        varied=request.values.sweep if request.values else parsed.values.get("sweep", ""),
        text=text,
        request=request,
        kernel=kernel,
    )
    return state(target, request, directory, timeout)


def state(target: Target, request: FormRequest, directory: str = "", timeout: float = CLUSTER_TIMEOUT) -> FormState:
    """Return the form for the values of the page (default: the initial values)."""
    code, choices = target.inspect(), all_choices()
    variables = variables_of(target, request)
    values = request.values or _initial_values(target, code, choices, timeout)
    rows = tuple(structs.replace(row, address=mask_signature(row.address)) for row in values.data)
    values = structs.replace(values, data=rows, outputs=mask_signature(values.outputs))
    if request.apply:
        values, code = _apply_advice(target, values, code, request.apply)
    status = poll_cluster(values.compute_target, values.distributed_backend, timeout, fresh=request.refresh)
    gpu_count = gpus_per_node(values, status)
    if values.automatic:
        values = structs.replace(values, process_count_per_node=max(1, gpu_count))
    _, cluster = find_cluster(values.compute_target)
    options = to_options(values, variables, code.name)
    working_directory = code.draft.payload_json.get("working_directory") if code.draft else ""
    results = _run_checks(code, values, options, Path(directory or working_directory or Path.cwd()), cluster)
    errors = (item for item in reversed(results.items) if item.level == "error" and item.field)
    problems = {item.field: f"{item.text} {item.remedy}".strip() for item in errors}
    if target.line.problem:
        problems["line"] = f"{target.line.problem} Submitting replaces the line."
    valid = {**options, "data": valid_data(values.data), "outputs": "" if "outputs" in problems else options["outputs"]}
    magic, cell = _write_cell(target, values, valid)
    return FormState(
        values=values,
        choices=choices,
        title=code.title,
        gpu_count=gpu_count,
        environment=tuple(
            Variable(name, None if (secret := is_secret(name, value)) else value, secret)
            for name, value in variables.items()
        ),
        captured=code.draft.captured if code.draft else () if code.error else None,
        checks=results,
        advice=tuple(_advise(values, code)),
        global_batch=float(code.training.batch_size or 0) * values.node_count * values.process_count_per_node,
        magic=magic,
        cell=cell,
        problems=problems,
        cluster_status=status and only_problems(status),
        mounts=cluster is not None and cluster.mounts,
        cost=current_cost(values),
        options=_without_secrets(options),
        code=target.text.body,
    )


# initial values and changes -------------------------------------------------------------------------


def _initial_values(target: Target, code: CodeInfo, choices: FormChoices, timeout: float) -> FormValues:
    """Return the values of the line, completed with defaults for the code and this machine."""
    initial = {"name": code.name, **target.line.values}
    count, backend = initial.pop("process_count_per_node", None), initial.pop("distributed_backend", "")
    values = FormValues(**initial)
    if not isinstance(count, int):
        status = poll_cluster(values.compute_target, values.distributed_backend, timeout)
        gpu_count = gpus_per_node(values, status)
        values = structs.replace(values, automatic=count == "auto" or gpu_count > 0)
        count = max(1, gpu_count) if values.automatic else min(2, cores())
    likely = likely_backend(choices.backends, backend_of_code(code.training.code), values.node_count * count)
    return structs.replace(values, process_count_per_node=count, distributed_backend=backend or likely)


def variables_of(target: Target, request: FormRequest) -> dict[str, str]:
    """Return the environment variables with their values; None stands for the initial value."""
    initial = target.line.environment_variables
    if request.environment is None:
        return dict(initial)
    typed = {variable.name: variable.value for variable in request.environment if variable.name}
    return {name: initial.get(name, "") if value is None else value for name, value in typed.items()}


def _apply_advice(target: Target, values: FormValues, info: CodeInfo, code: str) -> tuple[FormValues, CodeInfo]:
    """Apply one suggestion; an unknown code changes nothing."""
    change = next((dict(item.change) for item in _advise(values, info) if item.code == code), {})
    rates = change.pop("kwargs", None)
    if "process_count_per_node" in change:
        change["automatic"] = False
    if rates:
        target.kwargs.update(rates)
        target.kernel.cache.clear()
    return structs.replace(values, **change), target.inspect()


# checks: capture, options, a dry run of the plan, and checks of the code -----------------------------

#: Maximum number of ranks in a dry run, which creates a slot for each rank.
_MAX_RANKS = 4096
#: Fields for errors that do not name one.
_DEFAULT_FIELDS = {"cluster-not-usable": "compute_target", "backend-not-usable": "distributed_backend"}


def _run_checks(
    code: CodeInfo, values: FormValues, options: Mapping[str, Any], folder: Path, cluster: Cluster | None
) -> FormChecks:
    """Return the results of all checks; local paths are relative to ``folder``."""
    options = {name: value for name, value in options.items() if value is not None}
    checks = {
        name: _run_check(_title(name), partial(about.check, options[name], name))
        for name, about in OPTIONS.items()
        if name in options
    }
    if "data" in checks:
        checks["data"] = _run_check("Data", partial(_check_data, values, folder, cluster))
    errors = {name: check for name, check in checks.items() if check.level == "error"}
    plan, spec = _check_plan(code, {name: options[name] for name in options if name not in errors}, folder)
    items = [_to_check("Capture", code.error)] if code.error else []
    items += [*errors.values(), plan, *(checks[name] for name in checks if name == "data" and name not in errors)]
    if values.sweep.strip():
        check = _run_check("Sweep", partial(_check_sweep, values.sweep))
        items.append(replace(check, field="sweep" if check.level == "error" else ""))
    reports = preflight.report(code.draft, spec).checks if code.draft is not None and spec is not None else ()
    count = len(items) + len(reports)
    for report in reports:
        items += [
            FormCheck(report.name, finding.level, finding.text, finding.remedy, "", finding.code)
            for finding in report.findings
        ] or [FormCheck(report.name, "ok", report.result, "", "", report.code)]
    levels = [item.level for item in items]
    return FormChecks(
        level="error" if "error" in levels else "warning" if "warning" in levels else "ok",
        count=count,
        errors=levels.count("error"),
        warnings=levels.count("warning"),
        items=tuple(items),
    )


def _run_check(name: str, check: Callable[[], object]) -> FormCheck:
    """Return the result of a check as text, or the error that it raises."""
    try:
        return FormCheck(name, "ok", str(check()), "", "")
    except DistDLError as error:
        return _to_check(name, error)


def _to_check(name: str, error: DistDLError) -> FormCheck:
    field = getattr(error, "field", "") or _DEFAULT_FIELDS.get(error.code, "")
    return FormCheck(name, "error", error.message, error.hint, field, error.code)


def _title(option: str) -> str:
    return OPTIONS[option].label or option.replace("_", " ").capitalize()


def _check_data(values: FormValues, folder: Path, cluster: Cluster | None) -> str:
    """Check the addresses of data as text; their content is checked when the job starts."""
    sources = [data.parse_source(name, address) for name, address in addresses(values.data)]
    if cluster is not None:
        jobspec.data_sources(sources, folder, cluster)
    return plural(len(sources), "source")


def _check_sweep(search_space: str) -> str:
    """Check the search space of a sweep as it was typed."""
    parameters, rest = space.parse_line(search_space)
    if rest.strip():
        raise InvalidSpec(
            f"Cannot parse {rest.split()[0]}.",
            code="sweep-unreadable",
            hint="Write NAME=VALUES, such as width=64,128.",
        )
    return f"{listing([*parameters])} can be varied"


def _check_plan(code: CodeInfo, options: Mapping[str, Any], folder: Path) -> tuple[FormCheck, JobSpec | None]:
    """Return the error that Submit would raise before the checks, and the job's spec if it can be created."""
    draft = code.draft or CapturedCode(kind="cell", name=code.name, source=CodeSource())
    draft = replace(draft, payload_json={**draft.payload_json, "working_directory": str(folder)})
    spec: JobSpec | None = None

    def describe() -> str:
        nonlocal spec
        spec, _, run_dry = jobspec.planned(draft, options)
        if spec.process_count <= _MAX_RANKS:
            run_dry()
        return f"{spec.distributed_backend} can run {plural(spec.process_count, 'process')} on {spec.compute_target}"

    check = _run_check("Backend and cluster", describe)
    return replace(check, name=_title(check.field)) if check.field in OPTIONS else check, spec


# derived values -------------------------------------------------------------------------------------


def gpus_per_node(values: FormValues, status: CachedStatus | None) -> int:
    """Return the number of GPUs of a node, for "one process per GPU": from the VM size, else the cluster's nodes."""
    if values.use_gpu == "no":
        return 0
    if values.vm_size:
        return azure.find(values.vm_size).whole_gpus
    return len(machine.list_gpu_numbers()) if status is None else min_gpus_per_node(status)


def _without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    set_options = {name: value for name, value in options.items() if value is not None}
    variables = set_options.pop("environment_variables", {})
    public = {name: value for name, value in variables.items() if not is_secret(name, value)}
    return {**set_options, **({"environment_variables": public} if public else {})}


def _write_cell(target: Target, values: FormValues, options: Mapping[str, Any]) -> tuple[str, str]:
    """Return the equivalent magic line, and the cell with it."""
    options = {**options, "plugin_options": backend_options(values)}
    varied, parsed = " ".join(values.sweep.split()), target.line
    flags = [*parsed.other_flags, *(parsed.magic_flags if parsed.is_sweep == bool(varied) else ())]
    magic, variable = target.magic, {"study": "job"}.get(parsed.variable, parsed.variable)
    if varied:
        flags = [*line.option_arguments(sweep_arguments(values)), *flags]
        magic, variable = f"{SWEEP} {varied}", {"job": "study"}.get(parsed.variable, parsed.variable)
    text = line.line(options, variable, magic, flags)
    return text, target.cell(text)


def _advise(values: FormValues, code: CodeInfo) -> Sequence[Advice]:
    nodes, cost = rented_nodes(values.compute_target, values.vm_size), current_cost(values)
    request = replace(
        code.training,
        node_count=values.node_count,
        process_count_per_node=values.process_count_per_node,
        distributed_backend=values.distributed_backend,
        compute_target=values.compute_target,
        vm_size=azure.find(values.vm_size) if values.vm_size else None,
        use_gpu=USE_GPU[values.use_gpu],
        name=values.name,
        cores=cores(),
        gpus=len(machine.list_gpu_numbers()),
        bills=nodes.bills,
        rate=cost.text if cost else "",
        interruptible=nodes.interruptible,
        max_run_duration_seconds=values.max_run_duration_seconds or None,
    )
    return advise(request, azure.catalogue(), past_jobs())


#: Number of earlier jobs for the advice, read from their folders.
_MAX_PAST_JOBS = 100


def past_jobs() -> list[PastJob]:
    """Return the newest jobs of this user, newest first."""
    store = JobStore()
    jobs: list[PastJob] = []
    for row in (listed.row for listed in job_list.here().all(job_list.TURN)[:_MAX_PAST_JOBS]):
        with contextlib.suppress(JobNotFound):
            spec = store.get_folder(row.id).read_spec()
            captured = (item for item in spec.captured if item.kind not in ("function", "class"))
            job = PastJob(
                id=row.id,
                name=row.name,
                process_count=spec.process_count,
                code=spec.source.code,
                arguments=(*sorted(f"{item.name}: {item.detail}" for item in captured), *spec.script_arguments),
                completed=row.state == "completed",
                seconds=None if row.ended is None else row.ended - row.created,
            )
            jobs.append(job)
    return jobs
