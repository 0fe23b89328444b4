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
from distdl_jupyter.clusters.cluster_configs import CachedStatus
from distdl_jupyter.core import data, machine
from distdl_jupyter.core.errors import DistDLError, JobNotFound
from distdl_jupyter.core.humanize import listing, plural
from distdl_jupyter.core.options import OPTIONS
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.core.spec import CodeSource, JobSpec
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.form import line
from distdl_jupyter.form.choices import (
    compute_cost,
    find_cluster,
    get_min_gpus,
    get_rented_nodes,
    guess_backend,
    list_choices,
    poll_cluster,
    select_problems,
)
from distdl_jupyter.form.line import MAGICS, SWEEP_MAGIC
from distdl_jupyter.form.schema import (
    FormCheck,
    FormChecks,
    FormChoices,
    FormRequest,
    FormState,
    FormValues,
    Variable,
)
from distdl_jupyter.form.target import CodeInfo, KernelContext, Target, detect_backend
from distdl_jupyter.form.values import (
    USE_GPU,
    get_backend_options,
    get_sweep_arguments,
    list_addresses,
    list_valid_data,
    mask_signature,
    to_options,
)
from distdl_jupyter.jobs import job_list, jobspec
from distdl_jupyter.node.devices import cores
from distdl_jupyter.preflight import Advice, PastJob, advise

#: Timeout in seconds for the first poll of a cluster.
POLL_SECONDS = 1.0


def compute_cell_form(
    request: FormRequest, kernel: KernelContext | None = None, directory: str = "", timeout: float = POLL_SECONDS
) -> FormState:
    """Return the form of a text. Local paths are relative to ``directory`` (default: the current directory)."""
    kernel = kernel or KernelContext({} if request.standalone else None)
    if request.refresh:
        kernel.cache.clear()
    text = line.split_cell(request.code)
    parsed = line.parse_magic_line(text, kernel.defaults)
    # Another package may have registered the magic of the cell in this kernel.
    is_free = text.magic in MAGICS and kernel.magic == MAGICS[0]
    target = Target(
        line=parsed,
        magic=text.magic if is_free else kernel.magic,
        search_space=request.values.sweep if request.values else parsed.values.get("sweep", ""),
        text=text,
        request=request,
        kernel=kernel,
    )
    return compute_form(target, request, directory, timeout)


def compute_form(target: Target, request: FormRequest, directory: str = "", timeout: float = POLL_SECONDS) -> FormState:
    """Return the form for the values in the request (default: the initial values)."""
    code, choices = target.inspect(), list_choices()
    variables = get_variables(target, request)
    values = request.values or _create_initial_values(target, code, choices, timeout)
    data_rows = tuple(structs.replace(row, address=mask_signature(row.address)) for row in values.data)
    values = structs.replace(values, data=data_rows, outputs=mask_signature(values.outputs))
    if request.apply:
        values, code = _apply_advice(target, values, code, request.apply)
    status = poll_cluster(values.compute_target, values.distributed_backend, timeout, fresh=request.refresh)
    gpu_count = count_gpus_per_node(values, status)
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
    valid = {**options, "data": list_valid_data(values.data)} | ({"outputs": ""} if "outputs" in problems else {})
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
        cluster_status=status and select_problems(status),
        mounts=cluster is not None and cluster.can_mount,
        cost=compute_cost(values),
        options=_remove_secrets(options),
        code=target.text.body,
    )


# initial values and changes -------------------------------------------------------------------------


def _create_initial_values(target: Target, code: CodeInfo, choices: FormChoices, timeout: float) -> FormValues:
    """Return the values of the line, completed with defaults for the code and this machine."""
    initial = {"name": code.name, **target.line.values}
    count, backend = initial.pop("process_count_per_node", None), initial.pop("distributed_backend", "")
    values = FormValues(**initial)
    if not isinstance(count, int):
        status = poll_cluster(values.compute_target, values.distributed_backend, timeout)
        gpu_count = count_gpus_per_node(values, status)
        values = structs.replace(values, automatic=count == "auto" or gpu_count > 0)
        count = max(1, gpu_count) if values.automatic else min(2, cores())
    likely_backend = guess_backend(choices.backends, detect_backend(code.training.code), values.node_count * count)
    return structs.replace(values, process_count_per_node=count, distributed_backend=backend or likely_backend)


def get_variables(target: Target, request: FormRequest) -> dict[str, str]:
    """Return the environment variables with their values; a value of None in the request is the initial value."""
    initial = target.line.environment_variables
    if request.environment is None:
        return dict(initial)
    values = {variable.name: variable.value for variable in request.environment if variable.name}
    return {name: initial.get(name, "") if value is None else value for name, value in values.items()}


def _apply_advice(target: Target, values: FormValues, info: CodeInfo, code: str) -> tuple[FormValues, CodeInfo]:
    """Apply the suggestion with this code, if there is one."""
    change = next((dict(item.change) for item in _advise(values, info) if item.code == code), {})
    kwargs = change.pop("kwargs", None)
    if "process_count_per_node" in change:
        change["automatic"] = False
    if kwargs:
        target.kwargs.update(kwargs)
        target.kernel.cache.clear()
    return structs.replace(values, **change), target.inspect()


# checks: capture, options, a dry run of the plan, and checks of the code -----------------------------

#: Maximum number of ranks in a dry run, which creates a slot for each rank.
_MAX_RANKS = 4096
#: Fields for errors that do not name one.
_DEFAULT_FIELDS = {"cluster-not-usable": "compute_target", "backend-not-usable": "distributed_backend"}


def _run_checks(
    code: CodeInfo, values: FormValues, options: Mapping[str, Any], directory: Path, cluster: Cluster | None
) -> FormChecks:
    """Return the results of all checks; local paths are relative to ``directory``."""
    options = {name: value for name, value in options.items() if value is not None}
    checks = {
        name: _run_check(_get_title(name), partial(option.check, options[name], name))
        for name, option in OPTIONS.items()
        if name in options
    }
    if "data" in checks:
        checks["data"] = _run_check("Data", partial(_check_data, values, directory, cluster))
    errors = {name: check for name, check in checks.items() if check.level == "error"}
    plan, spec = _check_plan(code, {name: options[name] for name in options if name not in errors}, directory)
    items = [_to_check("Capture", code.error)] if code.error else []
    items += [*errors.values(), plan, *(checks[name] for name in checks if name == "data" and name not in errors)]
    if values.sweep.strip():
        check = _run_check("Sweep", lambda: f"{listing([*line.parse_search_space(values.sweep)])} can be varied")
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
    """Run a check and return its result, or the error that it raises."""
    try:
        return FormCheck(name, "ok", str(check()), "", "")
    except DistDLError as error:
        return _to_check(name, error)


def _to_check(name: str, error: DistDLError) -> FormCheck:
    field = getattr(error, "field", "") or _DEFAULT_FIELDS.get(error.code, "")
    return FormCheck(name, "error", error.message, error.hint, field, error.code)


def _get_title(option: str) -> str:
    return OPTIONS[option].label or option.replace("_", " ").capitalize()


def _check_data(values: FormValues, directory: Path, cluster: Cluster | None) -> str:
    """Check the addresses of data sources; their content is checked when the job starts."""
    sources = [data.parse_source(name, address) for name, address in list_addresses(values.data)]
    if cluster is not None:
        jobspec.resolve_data(sources, directory, cluster)
    return plural(len(sources), "source")


def _check_plan(code: CodeInfo, options: Mapping[str, Any], directory: Path) -> tuple[FormCheck, JobSpec | None]:
    """Plan the job without starting it; return the result as a check, and the job's spec if it can be created."""
    draft = code.draft or CapturedCode(kind="cell", name=code.name, source=CodeSource())
    draft = replace(draft, payload_json={**draft.payload_json, "working_directory": str(directory)})
    spec: JobSpec | None = None

    def describe() -> str:
        nonlocal spec
        spec, _, run_dry = jobspec.plan_spec(draft, options)
        if spec.process_count <= _MAX_RANKS:
            run_dry()
        return f"{spec.distributed_backend} can run {plural(spec.process_count, 'process')} on {spec.compute_target}"

    check = _run_check("Backend and cluster", describe)
    return replace(check, name=_get_title(check.field)) if check.field in OPTIONS else check, spec


# derived values -------------------------------------------------------------------------------------


def count_gpus_per_node(values: FormValues, status: CachedStatus | None) -> int:
    """Return the number of GPUs of a node: of the VM size, else of the cluster's nodes, else of this machine."""
    if values.use_gpu == "no":
        return 0
    if values.vm_size:
        return azure.find_size(values.vm_size).whole_gpus
    return len(machine.list_gpu_numbers()) if status is None else get_min_gpus(status)


def _remove_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    set_options = {name: value for name, value in options.items() if value is not None}
    variables = set_options.pop("environment_variables", {})
    public = {name: value for name, value in variables.items() if not is_secret(name, value)}
    return {**set_options, **({"environment_variables": public} if public else {})}


def _write_cell(target: Target, values: FormValues, options: Mapping[str, Any]) -> tuple[str, str]:
    """Return the equivalent magic line, and the cell with it."""
    options = {**options, "plugin_options": get_backend_options(values)}
    search_space, parsed = " ".join(values.sweep.split()), target.line
    flags = [*parsed.other_flags, *(parsed.magic_flags if parsed.is_sweep == bool(search_space) else ())]
    magic, variable = target.magic, {"study": "job"}.get(parsed.variable, parsed.variable)
    if search_space:
        flags = [*line.format_arguments(get_sweep_arguments(values)), *flags]
        magic, variable = f"{SWEEP_MAGIC} {search_space}", {"job": "study"}.get(parsed.variable, parsed.variable)
    text = line.format_line(options, variable, magic, flags)
    return text, target.format_cell(text)


def _advise(values: FormValues, code: CodeInfo) -> Sequence[Advice]:
    nodes, cost = get_rented_nodes(values.compute_target, values.vm_size), compute_cost(values)
    request = replace(
        code.training,
        node_count=values.node_count,
        process_count_per_node=values.process_count_per_node,
        distributed_backend=values.distributed_backend,
        compute_target=values.compute_target,
        vm_size=azure.find_size(values.vm_size) if values.vm_size else None,
        use_gpu=USE_GPU[values.use_gpu],
        name=values.name,
        cores=cores(),
        gpus=len(machine.list_gpu_numbers()),
        is_billed=nodes.is_billed,
        price_text=cost.text if cost else "",
        is_preemptible=nodes.is_interruptible,
        max_run_duration_seconds=values.max_run_duration_seconds or None,
    )
    return advise(request, azure.load_catalogue(), list_past_jobs())


#: Number of past jobs that the advice considers.
_MAX_PAST_JOBS = 100


def list_past_jobs() -> list[PastJob]:
    """Return the newest jobs of this user, newest first."""
    store = JobStore()
    jobs: list[PastJob] = []
    for row in (entry.row for entry in job_list.get_index().read_all(job_list.LIST_READ_SECONDS)[:_MAX_PAST_JOBS]):
        with contextlib.suppress(JobNotFound):
            spec = store.get_folder(row.id).read_spec()
            captured = (item for item in spec.captured if item.kind not in ("function", "class"))
            job = PastJob(
                id=row.id,
                name=row.name,
                process_count=spec.process_count,
                code=spec.source.code,
                arguments=(*sorted(f"{item.name}: {item.detail}" for item in captured), *spec.script_arguments),
                is_completed=row.state == "completed",
                seconds=None if row.ended is None else row.ended - row.created,
            )
            jobs.append(job)
    return jobs
