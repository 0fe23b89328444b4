"""``check(train)``: checks distributed training by comparing its first steps on several ranks and on one process."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter import capture
from distdl_jupyter.core import correctness, files, registry
from distdl_jupyter.core.correctness import Comparison
from distdl_jupyter.core.errors import InvalidSpec, JobFailed, JobNotFound, explain_interrupt
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.options import ALIASES, TOTAL_NAMES
from distdl_jupyter.jobs import client, jobspec
from distdl_jupyter.views.job_page import make_job_check

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.jobs.client import Job
    from distdl_jupyter.views.job_page import JobCheck

#: Maximum steps of each of the two runs.
MAX_STEPS = 100
#: Maximum seconds of each of the two runs.
_MAX_SECONDS = 900.0
#: Maximum ranks in the check of a job.
_MAX_RANKS = 4
#: Maximum seconds between the end of the first run and the start of the second one.
_START_SECONDS = 10.0
#: Seconds between two polls of a run.
_POLL_SECONDS = 0.2


def check(
    function: Callable[..., Any] | Job,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    steps: int = 3,
    **options: Any,
) -> Comparison:
    """Run the first training steps of a function on several ranks and on one process, and compare them.

    The unchanged function runs on two ranks, or as set by ``options`` (those of ``submit``), and exits after
    ``steps`` optimizer steps, as with ``sys.exit()``. Then one process repeats these steps with the ``DataLoader``
    batches of all ranks, from the same weights. Samples, gradients and weights are compared; ``.findings``
    lists what is wrong and which line to change.

    If a job is passed instead of a function, its code and values are checked.

    Raises InvalidSpec, JobFailed if the function fails, and the errors of ``submit``.
    """
    if isinstance(function, client.Job):
        return compare(function, steps=steps, **options)
    return compare(capture.capture_function(function, tuple(args), dict(kwargs or {})), steps=steps, **options)


def compare(code: CapturedCode | Job, *, steps: int = 3, **options: Any) -> Comparison:
    """Run ``check`` for captured code, or for the code and the values of a job."""
    job = start(code, steps=steps, **options)
    processes = plural(job.spec.process_count, "process")
    sys.stderr.write(f"Check: {plural(steps, 'step')} on {processes}, then on one with the same samples.\n")
    sys.stderr.flush()
    single_run = finish(job)
    if job.state is not State.COMPLETED:
        job.result()
        raise JobFailed(job.view().reason, code=job.view().reason_code or "check-run-failed")
    return compare_jobs(job, single_run)


def start(code: CapturedCode | Job, *, steps: int = 3, **options: Any) -> Job:
    """Start the run on several ranks; ``finish`` waits for it and starts the run on one process.

    The code of a job runs on as many ranks as the job had, but at least 2 and at most ``_MAX_RANKS``.
    ``options`` replace those of the job.
    """
    check = {"steps": steps, "replay": ""}
    if not isinstance(code, client.Job):
        resolved = _check_options(options, steps)
        name = str(resolved.pop("name", code.name))
        return client.launch(code, check=check, **resolved, name=f"{name}, check"[-120:])
    spec = code.spec
    if spec.kind == "ranks":
        raise InvalidSpec(
            "A session of persistent ranks has no training code of its own, so it cannot be checked.",
            code="check-kept-ranks",
            field="check",
            hint="Start the cell that trains with %%distributed --check.",
        )
    ranks = min(max(2, spec.process_count), _MAX_RANKS)
    defaults: dict[str, Any] = {"process_count_per_node": ranks, "node_count": 1, "compute_target": "local"}
    defaults |= jobspec.resolve_options(options)
    if spec.distributed_backend == registry.SINGLE_PROCESS_BACKEND:
        defaults.setdefault("distributed_backend", registry.DEFAULT_BACKEND)
    resolved = {**_check_options(defaults, steps), "name": f"{code.name.removesuffix(', check')}, check"[-120:]}
    return client.relaunch(code, check=check, **resolved)


def finish(job: Job) -> Job | None:
    """Wait for the run on several ranks and repeat its steps on one process; return that job, or None if it failed.

    An interrupt stops the run.
    """
    _wait(job)
    if job.state is not State.COMPLETED:
        return None
    check, name = {**job.spec.check, "replay": str(job.folder.path)}, f"{job.name} on one process"[-120:]
    single_run = client.relaunch(job, check=check, node_count=1, process_count_per_node=1, name=name)
    files.write_json(job.folder.path / correctness.SINGLE_RUN_FILE, {"single": single_run.id})
    _wait(single_run)
    return single_run


def finish_later(job: Job) -> None:
    """Run ``finish`` in a thread of this process; if the process exits early, only the ranks are compared."""
    threading.Thread(target=finish, args=(job,), name="check", daemon=True).start()


def get_check_status(job: Job) -> JobCheck:
    """Return the progress and the findings so far of a check. Raises JobNotFound if the job is not a check."""
    if not job.spec.check or job.spec.check.get("replay"):
        raise JobNotFound(
            f"Job {job.id} is not a check.",
            code="job-is-not-a-check",
            hint="Check the code of a job with: distdl check ID",
        )
    empty, single_run = Comparison(job.spec.process_count, 0), None
    with contextlib.suppress(JobNotFound):
        single_run = client.attach(correctness.read_single_run_id(job.folder.path))
    if not job.state.ended:
        return make_job_check("several", empty)
    if job.state is not State.COMPLETED:
        return make_job_check("failed", empty, reason=job.view().reason)
    if single_run is not None and not single_run.state.ended:
        return make_job_check("one", compare_jobs(job), single=single_run.id)
    if single_run is None and time.time() - (job.view().ended or 0.0) < _START_SECONDS:
        return make_job_check("one", compare_jobs(job))
    return make_job_check("done", compare_jobs(job, single_run), single=single_run.id if single_run is not None else "")


def compare_jobs(job: Job, single_run: Job | None = None) -> Comparison:
    """Compare the records of a checked job and of the single process that repeated its steps.

    Without ``single_run``, only the ranks are compared, for code that requires several processes.
    """
    records = correctness.read_records(single_run.folder.path) if single_run is not None else []
    comparison = correctness.compare(correctness.read_records(job.folder.path), records[0] if records else None)
    if single_run is not None and single_run.state.ended and single_run.state is not State.COMPLETED:
        comparison.left_out.append(f"In the run on one process: {single_run.view().reason}")
    return comparison


def _check_options(options: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Return the options of the run on several ranks. Raises InvalidSpec."""
    if type(steps) is not int or not 1 <= steps <= MAX_STEPS:
        raise InvalidSpec(
            f"steps must be an integer from 1 to {MAX_STEPS}, not {steps!r}.",
            code="check-steps-invalid",
            field="steps",
        )
    resolved = jobspec.resolve_options(options)
    if not {ALIASES.get(name, name) for name in resolved} & {"process_count_per_node", "node_count", *TOTAL_NAMES}:
        resolved["process_count_per_node"] = 2
    nodes, per_node = resolved.get("node_count", 1), resolved.get("process_count_per_node", 1)
    if (nodes, per_node) == (1, 1):  # other invalid numbers are refused by the submission
        raise InvalidSpec(
            "A check compares a parallel run with a single-process run, so it needs at least two processes.",
            code="check-one-process",
            field="process_count_per_node",
            hint="Use -p 2.",
        )
    if (resolved.get("compute_target") or "local") != "local":
        raise InvalidSpec(
            "A check runs only on this machine, where it compares the recordings of the ranks.",
            code="check-not-local",
            field="compute_target",
            hint="Remove compute_target.",
        )
    resolved.setdefault("distributed_backend", registry.DEFAULT_BACKEND)
    resolved.setdefault("max_run_duration_seconds", _MAX_SECONDS)
    return {**resolved, "max_restarts": 0, "outputs": "", "weight_check_steps": 0}


def _wait(job: Job) -> None:
    """Wait for the end of a run; an interrupt stops the run."""
    try:
        with explain_interrupt(lambda: "Interrupted; the check was stopped, and none of its runs is still running."):
            while not job.state.ended:
                time.sleep(_POLL_SECONDS)
    finally:
        if not job.state.ended:
            job.cancel()
            job.wait()
