"""Runs a notebook in a real kernel and shows in the terminal what its training job does: ``make demo``.

The executed copy goes below the environment's folder; the committed notebook stays as it is. Exit code 0 when every
cell ran and the job's test accuracy is at least 0.95, else 1.
"""

from __future__ import annotations

import math
import re
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from distdl_jupyter import attach, jobs
from distdl_jupyter.core.humanize import duration, number, percent, plural
from distdl_jupyter.core.logfile import split_lines
from distdl_jupyter.environment.horovod import ConsoleProgress
from distdl_jupyter.jobs.reader import JobReader

if TYPE_CHECKING:
    import pandas as pd

    from distdl_jupyter import Job
    from distdl_jupyter.core.view import JobView

LEAST_ACCURACY = 0.95
CURVE_WIDTH, CURVE_HEIGHT = 64, 10
CELL_SECONDS = 900
LOOKS_A_SECOND = 5
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*m")


def main(arguments: list[str]) -> int:
    """Run the notebook named in ``arguments`` and say how it went."""
    notebook = Path(arguments[0] if arguments else Path(__file__).with_name("quickstart.ipynb"))
    if not notebook.exists():
        sys.stderr.write(f"There is no notebook {notebook}; name one: python notebooks/run.py NOTEBOOK.\n")
        return 1
    copy = Path(sys.prefix) / "demo" / notebook.name
    known = {job.id for job in jobs()}
    say(f"Running {notebook} in a kernel of {sys.executable}")
    with ThreadPoolExecutor(max_workers=1) as pool:
        terminal = Terminal(known)
        terminal.watch(pool.submit(execute, notebook, copy))
    if (failure := terminal.failure) is not None:
        sys.stderr.write(f"{failure}\nThe notebook stopped at this cell; its executed copy: {copy}\n")
        return 1
    return conclude([attach(id_) for id_ in terminal.seen], copy)


def execute(notebook: Path, copy: Path, last: str = "") -> str | None:
    """Run all cells from the notebook's own folder, and ``last`` as one more, and write the executed copy.

    Returns None, or the failing cell's traceback.
    """
    document = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    if last:
        document.cells.append(nbformat.v4.new_code_cell(last))  # type: ignore[no-untyped-call]
    client = NotebookClient(
        document,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        # The kernel's warning about its open ports would stand in the middle of the job's output.
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(notebook.parent.absolute())}},
    )
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return TERMINAL_CODES.sub("", str(error)).strip()
    finally:
        copy.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(document, copy)  # type: ignore[no-untyped-call]
    return None


class Terminal:
    """Shows the jobs that start while the notebook runs: what the ranks print, and where each job is."""

    def __init__(self, known: set[str]) -> None:
        self.failure: str | None = None
        self.seen: list[str] = []
        self._known = known
        self._followers: list[JobReader] = []
        self._status = ConsoleProgress(sys.stdout, every_seconds=10.0)

    def watch(self, running: Future[str | None]) -> None:
        """Show what happens until the notebook has run."""
        while not running.done():
            self._look()
            time.sleep(1 / LOOKS_A_SECOND)
        self._look()
        self._status.clear()
        self.failure = running.result()

    def _look(self) -> None:
        for job in reversed(jobs()):
            if job.id not in self._known:
                self._known.add(job.id)
                self.seen.append(job.id)
                self._followers.append(JobReader(job.folder, lines=True))
        for follower in self._followers:
            self._show(follower)

    def _show(self, follower: JobReader) -> None:
        while batch := follower.read():
            self._status.clear()
            for line in split_lines(batch):
                say(f"  [{'job' if line.rank is None else line.rank}] {line.text}")
        if not follower.view.state.ended:
            self._status(status(follower.view))


def status(view: JobView) -> str:
    """Return where a job is in one line: state, phase or progress, newest metrics."""
    parts = [f"{view.name}: {view.state.value}, {duration(view.compute_run_time(time.time()))}"]
    if phases := [phase for phase in view.phases if phase.started is not None and phase.seconds is None]:
        parts.append(phases[-1].phase)
    if view.done is not None and view.total:
        parts.append(percent(view.done, view.total))
    parts += [f"{metric.name} {number(metric.mean)}" for metric in view.metrics.values()]
    return ", ".join(parts)


def conclude(finished: list[Job], copy: Path) -> int:
    """Print each job's loss curve and the test accuracy; 0 when it is good enough."""
    accuracy = math.nan
    for job in finished:
        metrics = job.metrics()
        say(f"\n{job.name}: {job.state.value}, {plural(job.spec.process_count, 'process')}, job {job.id}")
        if len(loss := over_steps(metrics, "loss", "loss")):
            say(curve(loss))
        if len(reached := over_steps(metrics, "accuracy", "test_accuracy")):
            accuracy = float(reached.iloc[-1])
    say(f"\nTest accuracy: {number(accuracy)} (at least {LEAST_ACCURACY} is wanted)")
    say(f"The executed notebook: {copy}")
    if not accuracy >= LEAST_ACCURACY:
        sys.stderr.write("The accuracy was not reached; `distdl logs ID` prints what the ranks said.\n")
        return 1
    say("Open the same notebook in JupyterLab, with live panels: make lab")
    return 0


def over_steps(metrics: pd.DataFrame, word: str, best: str) -> pd.Series[Any]:
    """Return the mean over ranks at each step of the metric ``best``, or else of the first whose name holds ``word``.

    Empty when there is none, or when none of its values is a number.
    """
    names = [str(name) for name in metrics.columns if word in str(name)]
    chosen = best if best in names else next(iter(names), None)
    return metrics.groupby("step")[chosen].mean().dropna() if chosen else metrics.iloc[:0, 0]


def curve(series: pd.Series[Any]) -> str:
    """Draw one value per step with characters: step to the right, value upwards; the axes show the extremes."""
    low, high = float(series.min()), float(series.max())
    first, last = float(series.index[0]), float(series.index[-1])
    rows = [[" "] * CURVE_WIDTH for _ in range(CURVE_HEIGHT)]
    for step, value in series.items():
        across = share(float(step), first, last) * (CURVE_WIDTH - 1)  # type: ignore[arg-type]
        down = (1 - share(float(value), low, high)) * (CURVE_HEIGHT - 1)
        rows[round(down)][round(across)] = "•"
    labels = [number(high), *[""] * (CURVE_HEIGHT - 2), number(low)]
    width = max(len(label) for label in labels)
    drawn = [f"{label:>{width}} │{''.join(row).rstrip()}" for label, row in zip(labels, rows, strict=True)]
    axis = f"{'':>{width}} └{'─' * CURVE_WIDTH}"
    steps = f"{'':>{width}}  step {number(first)}{number(last):>{CURVE_WIDTH - 5 - len(number(first))}}"
    return "\n".join([f"{series.name} over steps, mean of all ranks", *drawn, axis, steps])


def share(value: float, low: float, high: float) -> float:
    """Return where ``value`` lies between ``low`` (0) and ``high`` (1)."""
    return (value - low) / (high - low) if high > low else 0.0


def say(text: str) -> None:
    """Print at once: the reader waits."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
