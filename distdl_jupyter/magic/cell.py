"""``%%distributed`` starts a cell as a job and shows it; ``%%sweep`` starts many trials of it.

``--wait`` waits for the end. A notebook executed by a program (papermill, nbconvert) also waits unless ``--no-wait`` is
given; otherwise it would be saved as successful before the job ends.
"""

from __future__ import annotations

import argparse
import functools
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter import capture
from distdl_jupyter.core import space
from distdl_jupyter.core.errors import InvalidSpec, JobNotRunning, ResultUnavailable, explain
from distdl_jupyter.core.humanize import findings, processes, short_id
from distdl_jupyter.core.state import State
from distdl_jupyter.form.arguments import SWEEP, cell_parser, job_options, sweep_parser, without_secrets
from distdl_jupyter.magic.ranks_magic import RanksMagics
from distdl_jupyter.magic.session import Session, as_magic, identifier, say

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.jobs.client import Job

#: Seconds after which a cell prints that it is still packing variables.
_LONG = 2.0


class CellMagics:
    """``%%distributed`` and ``%%sweep`` of one kernel."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def distributed(self, name: str) -> Callable[..., Any]:
        """Return the function to register under this name."""
        # The help is built lazily: it lists the flags of every plug-in, and loading them all is slow.
        text = "Run this cell on every rank of a distributed job."
        return as_magic(name, functools.partial(self.run, name), text, lambda: cell_parser(name).format_help())

    def sweep(self) -> Callable[..., Any]:
        """Return the function to register as ``sweep``."""
        text = "Run this cell many times with other values, and find the best."
        return as_magic("sweep", self._sweep, text, lambda: sweep_parser().format_help())

    def run(self, name: str, line: str, cell: str) -> Any:
        """Run one cell; return rank 0's value if it waits, else None."""
        from distdl_jupyter.jobs import client

        args = cell_parser(name).parse(line)
        out = identifier(getattr(args, "out", None))
        options = job_options(args, self._session.defaults)
        draft = capture_cell(cell, self._session.ip.user_ns, without_secrets(f"%%{name} {line}").strip())
        if getattr(args, "on_ranks", False):
            values = self._run_on_ranks(draft, args)
            return self._session.keep(out, values) if out else values
        if hasattr(args, "scale") or hasattr(args, "check"):
            study = _start_study(draft, args, options)
            self._session.keep(out, study)
            return study
        with_panel = getattr(args, "panel", True)
        if not with_panel:
            say(f"Captured {draft.summary()}")
        job = client.launch(draft, **options)
        self._session.newest = job.id
        self._session.keep(out, job)
        _show(job, with_panel=with_panel)
        if not self._waits(args):
            return None
        value = _wait(job)
        return value if getattr(args, "wait", False) else None

    def _waits(self, args: argparse.Namespace) -> bool:
        return bool(getattr(args, "wait", not self._session.is_interactive()))

    def _run_on_ranks(self, draft: CapturedCode, args: argparse.Namespace) -> Any:
        """Run the captured cell on the persistent ranks and return its values."""
        more = sorted(set(vars(args)) - {"on_ranks", "out", "wait", "panel"})
        if more:
            raise InvalidSpec(
                f"--{more[0].replace('_', '-')} cannot be combined with --on-ranks, which uses ranks that are already "
                "running.",
                code="option-of-kept-ranks",
                field=more[0],
                hint="Remove it, or start other ranks with %dist_ranks start.",
            )
        return RanksMagics(self._session).run_draft(draft)

    def _sweep(self, line: str, cell: str) -> None:
        """Start the sweep of a cell and show it."""
        from IPython.display import display

        from distdl_jupyter.studies import sweeps

        parser = sweep_parser()
        parser.answer_help(line.split())
        parameters, rest = space.of_line(line)
        args = parser.parse(rest)
        out = identifier(getattr(args, "out", None))
        options = job_options(args, self._session.defaults)
        namespace = {**self._session.ip.user_ns, **space.sample(parameters)}
        draft = capture_cell(cell, namespace, without_secrets(f"%%sweep {rest}").strip())
        plan = {name: getattr(args, name) for name in SWEEP if hasattr(args, name)}
        study = sweeps.of_draft(draft, parameters, **plan, **options)
        self._session.keep(out, study)
        display(study)  # type: ignore[no-untyped-call]
        if self._waits(args):
            study.wait()


def _start_study(draft: CapturedCode, args: argparse.Namespace, options: dict[str, Any]) -> Any:
    """Run ``--scale`` or ``--check`` and return the result."""
    from distdl_jupyter.studies import correctness, scaling  # lazy: few cells need them

    if getattr(args, "scale", ""):
        return scaling.of_options(draft, scaling.numbers(args.scale), options)
    return correctness.compare(draft, **options)


def capture_cell(cell: str, namespace: Mapping[str, Any], command: str) -> CapturedCode:
    """Capture the running cell, below its magic line ``command``, with the names it uses from ``namespace``."""
    notebook = capture.here()
    first_line = _line_below_magic(notebook.raw, cell)
    timer = threading.Timer(_LONG, say, ("Packing the variables and modules that the cell uses ...",))
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


def _line_below_magic(raw: str, cell: str) -> int | None:
    """Return the line number of the code within the whole cell, None if ``raw`` is another cell."""
    position = raw.rstrip().rfind(cell.rstrip())
    return raw.count("\n", 0, position) + 1 if position >= 0 and cell.strip() else None


def _show(job: Job, *, with_panel: bool) -> None:
    if with_panel:
        from distdl_jupyter.jobs import output

        output.show(job)
        return
    spec = job.spec
    for line in findings(spec.findings):
        say(line)
    size = processes(spec.node_count, spec.process_count_per_node)
    say(f"Started {spec.name} ({job.id}): {size}, {spec.distributed_backend} on {spec.compute_target}")


def _wait(job: Job) -> Any:
    """Wait for the job's end and return rank 0's value. Raises JobFailed.

    The first interrupt cancels a job on this machine, the second kills it, the third only stops waiting. For a job
    elsewhere, the first interrupt only stops waiting.
    """
    from distdl_jupyter.jobs import client

    interrupts = obeyed = 0
    while True:
        try:
            if interrupts > obeyed:  # inside this try, because the next interrupt may arrive here
                obeyed = interrupts
                _stop(job, now=interrupts == 2)
            job.wait()
            break
        except KeyboardInterrupt as interrupt:
            interrupts += 1
            if interrupts == 3 or job.spec.cluster != "local":
                explain(interrupt, client.interrupted(job, "%dist_cancel"))
                raise
    try:
        return job.result()
    except ResultUnavailable as error:  # the cell has completed; its value is seldom needed then
        say(str(error))
        return None


def _stop(job: Job, *, now: bool) -> None:
    try:
        job.cancel(now=now)
    except JobNotRunning:
        return
    if job.state is State.CANCELING or not now:
        say(f"Canceling job {job.name} ({short_id(job.id)}). Interrupt again to kill it at once.")
    if now:
        say(f"Killing job {job.name} ({short_id(job.id)}).")
