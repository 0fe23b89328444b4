"""``%%distributed`` starts a cell as a job and shows it; ``%%sweep`` starts many trials of it.

``--wait`` waits for the end. If a program (papermill, nbconvert) executes the notebook, cells also wait by default,
because the notebook would otherwise be saved as successful before the job has ended.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from distdl_jupyter import capture
from distdl_jupyter.core import space
from distdl_jupyter.core.errors import InvalidSpec, JobNotRunning, ResultUnavailable, explain
from distdl_jupyter.core.humanize import findings, processes, short_id
from distdl_jupyter.form.arguments import (
    SWEEP_FLAGS,
    get_job_options,
    make_cell_parser,
    make_sweep_parser,
    mask_secrets,
)
from distdl_jupyter.magic.ranks_magic import RanksMagics
from distdl_jupyter.magic.session import Session, check_identifier, make_magic, say

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.jobs.client import Job

#: Seconds after which a cell prints that it is packing variables.
_SLOW_SECONDS = 2.0


def create_magics(session: Session, names: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """Return the functions to register, by name; ``names`` are the names for ``%%distributed``."""
    text = "Run this cell many times with different values, and find the best."
    magics = {"sweep": make_magic("sweep", partial(_run_sweep, session), text, make_sweep_parser)}
    text = "Run this cell on every rank of a distributed job."
    for name in names:
        magics[name] = make_magic(name, partial(_run, session, name), text, partial(make_cell_parser, name))
    return magics


def _run(session: Session, name: str, line: str, cell: str) -> Any:
    """Run one cell; return rank 0's value with ``--wait``, else None."""
    from distdl_jupyter.jobs import client, output

    args = make_cell_parser(name).parse(line)
    out = check_identifier(getattr(args, "out", None))
    options = get_job_options(args, session.defaults)
    draft = capture_cell(cell, session.ip.user_ns, mask_secrets(f"%%{name} {line}").strip())
    if getattr(args, "on_ranks", False):
        values = _run_on_ranks(session, draft, args)
        return session.store(out, values) if out else values
    if hasattr(args, "scale") or hasattr(args, "check"):
        from distdl_jupyter.studies import correctness, scaling  # lazy: few cells need them

        study: Any
        if counts := getattr(args, "scale", ""):
            study = scaling.scale_with_options(draft, scaling.parse_counts(counts), options)
        else:
            study = correctness.compare(draft, **options)
        session.store(out, study)
        return study
    has_panel = getattr(args, "panel", True)
    if not has_panel:
        say(f"Captured {draft.format_summary()}")
    job = client.launch(draft, **options)
    session.newest_job_id = job.id
    session.store(out, job)
    if has_panel:
        output.show(job)
    else:
        spec, size = job.spec, processes(job.spec.node_count, job.spec.process_count_per_node)
        for finding in findings(spec.findings):
            say(finding)
        say(f"Started {spec.name} ({job.id}): {size}, {spec.distributed_backend} on {spec.compute_target}")
    if not session.should_wait(args):
        return None
    value = _wait_for_job(job)
    return value if getattr(args, "wait", False) else None


def _run_on_ranks(session: Session, draft: CapturedCode, args: argparse.Namespace) -> Any:
    """Run the captured cell on the persistent ranks and return its values."""
    name = min(set(vars(args)) - {"on_ranks", "out", "wait", "panel"}, default="")
    if name:
        raise InvalidSpec(
            f"--{name.replace('_', '-')} cannot be combined with --on-ranks, which uses ranks that already run.",
            code="option-of-kept-ranks",
            field=name,
            hint="Remove it, or start other ranks with %dist_ranks start.",
        )
    return RanksMagics(session).run_draft(draft)


def _run_sweep(session: Session, line: str, cell: str) -> None:
    """Start the sweep of a cell and show it."""
    from IPython.display import display

    from distdl_jupyter.studies import sweeps

    parameters, rest = space.parse_line(line)
    args = make_sweep_parser().parse(rest)
    out = check_identifier(getattr(args, "out", None))
    options = get_job_options(args, session.defaults)
    namespace = {**session.ip.user_ns, **space.get_first_values(parameters)}
    draft = capture_cell(cell, namespace, mask_secrets(f"%%sweep {rest}").strip())
    plan = {name: getattr(args, name) for name in SWEEP_FLAGS if hasattr(args, name)}
    study = sweeps.sweep_draft(draft, parameters, **plan, **options)
    session.store(out, study)
    display(study)  # type: ignore[no-untyped-call]
    if session.should_wait(args):
        study.wait()


def capture_cell(cell: str, namespace: Mapping[str, Any], command: str) -> CapturedCode:
    """Capture the running cell below its magic line ``command``, with the variables of ``namespace`` that it uses."""
    notebook = capture.current_location()
    first_line = _find_first_line(notebook.raw, cell)
    timer = threading.Timer(_SLOW_SECONDS, say, ("Packing the variables and modules that the cell uses ...",))
    timer.start()
    try:
        return capture.capture_cell(
            cell,
            namespace,
            cell_id=notebook.cell_id,
            execution_count=notebook.execution_count if first_line else None,
            notebook=notebook.path,
            first_line=first_line or 2,
            command=command,
        )
    finally:
        timer.cancel()


def _find_first_line(raw: str, cell: str) -> int | None:
    """Return the number of the first line of ``cell`` in the raw cell, or None if ``raw`` is another cell."""
    position = raw.rstrip().rfind(cell.rstrip())
    return raw.count("\n", 0, position) + 1 if position >= 0 and cell.strip() else None


def _wait_for_job(job: Job) -> Any:
    """Wait for the job's end and return rank 0's value. Raises JobFailed.

    The first interrupt cancels a job on this machine, the second kills it, the third only stops waiting. For a job on
    another cluster, the first interrupt only stops waiting.
    """
    from distdl_jupyter.jobs import client

    interrupts = handled = 0
    while True:
        try:
            if interrupts > handled:  # in the try block, because the next interrupt may arrive here
                handled = interrupts
                _stop_job(job, now=interrupts == 2)
            job.wait()
            break
        except KeyboardInterrupt as interrupt:
            interrupts += 1
            if interrupts == 3 or job.spec.cluster != "local":
                explain(interrupt, client.describe_interrupt(job, "%dist_cancel"))
                raise
    try:
        return job.result()
    except ResultUnavailable as error:  # the job has completed, and its value is rarely needed
        say(str(error))
        return None


def _stop_job(job: Job, *, now: bool) -> None:
    try:
        job.cancel(now=now)
    except JobNotRunning:
        return
    hint = "" if now else " Interrupt again to kill it immediately."
    say(f"{'Killing' if now else 'Canceling'} job {job.name} ({short_id(job.id)}).{hint}")
