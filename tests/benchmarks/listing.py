"""How long a list of 1, 10, 100 and 1,000 finished jobs takes: in Python, from the server, in the sidebar.

``python -m tests.benchmarks.listing``. The jobs are of real sizes (4 ranks, some 64; 200 steps of two metrics, 50
notes) and written by a supervisor's own hand. Each measurement in Python is a process of its own and begins when its
modules are imported; the peer is the least that a list needs: opening each job's ``spec.json`` as JSON. The server's
and the sidebar's peers are Jupyter's own answer about a folder of as many notebooks, and the file browser that shows
it, in the same server and the same page.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import nbformat
from playwright.sync_api import Page

from distdl_jupyter.core.events import State
from distdl_jupyter.core.spec import CodeSource
from distdl_jupyter.core.store import JobStore
from tests import finished
from tests.benchmarks import report
from tests.benchmarks.launchers import lab_of_this_environment, workplace
from tests.benchmarks.report import Report, interleaved
from tests.browser.conftest import TIMEOUT, Lab, open_chromium

SIZES = (1, 10, 100, 1_000)
GOAL_MS = 100
PYTHON = {
    "table": "print(client.jobs())",
    "states": "[job.state for job in client.jobs()]",
    "floor": "[json.load(open(f'{one.path}/spec.json')) for one in os.scandir(os.environ['DISTDL_HOME'] + '/jobs')]",
}
PROGRAM = """
import json, os, sys, time
from distdl_jupyter.jobs import client, job_list
from distdl_jupyter.views import job_table
begun = time.perf_counter()
{code}
sys.stderr.write(str(time.perf_counter() - begun))
"""
#: Resolves with the milliseconds from a command of JupyterLab until the first row that it brings is painted.
PAINTED = """
([command, given, row]) => new Promise((resolve) => {
  const begun = performance.now();
  const done = () => {
    if (!document.querySelector(row)) return;
    watch.disconnect();
    requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - begun)));
  };
  const watch = new MutationObserver(done);
  watch.observe(document.body, { childList: true, subtree: true });
  void window.jupyterapp.commands.execute(command, given);
})
"""


def measure(turns: int) -> Iterator[Report]:
    """Yield a table for each of the three."""
    with workplace() as (scratch, _):
        homes = {many: scratch / f"home-{many}" for many in SIZES}
        for many, home in homes.items():
            _write_jobs(JobStore(home), many)
        yield in_python(homes, turns)
        yield from in_lab(homes, scratch, turns)


def _write_jobs(store: JobStore, many: int) -> None:
    """Write so many finished jobs; every 25th has 64 ranks, every 10th has failed."""
    now = time.time()
    code = "\n".join(f"layer_{n} = torch.nn.Linear({n}, {n + 1})  # a line of a cell that trains" for n in range(60))
    for number in range(many):
        finished.job(
            number, State.FAILED if number % 10 == 9 else State.COMPLETED, store=store, steps=200, notes=50,
            created=now - 60 * (many - number), process_count_per_node=64 if number % 25 == 24 else 4,
            source=CodeSource(code=code, notebook="training.ipynb", command="%%distributed -p 4"),
        )  # fmt: skip


def in_python(homes: dict[int, Path], turns: int) -> Report:
    """Return the table of lists in Python."""
    table = Report("Finished jobs are listed in Python", "ms", report.versions("distdl-jupyter"))
    for many, home in homes.items():
        ways: dict[str, Callable[[], float | None]] = {name: partial(_process, name, home) for name in PYTHON}
        ways["anew"] = partial(_anew, home)
        found = interleaved(ways, turns)
        jobs = f"{many:,} {'job' if many == 1 else 'jobs'}"
        goal = GOAL_MS if many == max(homes) else None
        table.value(f"{jobs}, print(jobs())", found["table"], at_most=goal)
        table.value(f"{jobs}, the state of each", found["states"], at_most=goal)
        table.value(
            f"{jobs}, no row kept", found["anew"], note="the first list after an update from an earlier version"
        )
        table.compare(f"{jobs}, print(jobs())", found["table"], "json of each spec", found["floor"])
    return table


def _process(name: str, home: Path) -> float:
    program = PROGRAM.format(code=PYTHON[name])
    env = {**os.environ, "DISTDL_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    return float(done.stderr.splitlines()[-1])


def _anew(home: Path) -> float:
    for summary in home.glob("jobs/*/summary.json"):
        summary.unlink()
    return _process("table", home)


def in_lab(homes: dict[int, Path], scratch: Path, turns: int) -> Iterator[Report]:
    """Yield the tables of the server's answers and of the sidebar's first rows."""
    server: dict[tuple[int, str], list[float]] = {}
    painted: dict[tuple[int, str], list[float]] = {}
    for turn in range(turns):
        for many, home in homes.items():
            with ExitStack() as stack:
                lab = _lab(stack, scratch / f"lab-{turn}-{many}", home, many)
                for name, seconds in _answers(lab, many).items():
                    server.setdefault((many, name), []).append(seconds)
                for name, seconds in _pages(stack, lab).items():
                    painted.setdefault((many, name), []).append(seconds)
    versions = report.versions("distdl-jupyter", "jupyterlab", "jupyter_server")
    table = Report("A Jupyter server answers with all finished jobs", "ms", versions)
    _rows(table, homes, server, ("first answer", "later answers"), "as many notebooks")
    yield table
    table = Report("The sidebar shows finished jobs", "ms", versions)
    _rows(table, homes, painted, ("first rows",), "the file browser's")
    yield table


def _rows(
    table: Report, homes: dict[int, Path], found: dict[tuple[int, str], list[float]], names: tuple[str, ...], peer: str
) -> None:
    for many in homes:
        for name in names:
            goal = GOAL_MS if many == max(homes) else None
            table.value(f"{many:,}, {name}", found[many, name], at_most=goal)
            table.compare(f"{many:,}, {name}", found[many, name], peer, found[many, f"{name}, peer"])


def _lab(stack: ExitStack, home: Path, data: Path, many: int) -> Lab:
    """Return a JupyterLab of this environment with the jobs, and with a folder of as many notebooks."""
    lab = lab_of_this_environment(home, DISTDL_HOME=str(data))
    (lab.root / "many").mkdir()
    for number in range(many):
        nbformat.write(nbformat.v4.new_notebook(), lab.root / "many" / f"digits-{number:04}.ipynb")
    lab.start()
    stack.callback(lab.stop)
    return lab


def _answers(lab: Lab, many: int) -> dict[str, float]:
    """Return what first and later answers take, after the server's handlers were imported."""
    ours, theirs = f"distdl/api/jobs?limit={many}", "api/contents/many?content=1"
    _asked(lab, "distdl/api/clusters")
    _asked(lab, "api/contents?content=1")
    found = {"first answer": _asked(lab, ours), "first answer, peer": _asked(lab, theirs)}
    return {**found, "later answers": _asked(lab, ours), "later answers, peer": _asked(lab, theirs)}


def _asked(lab: Lab, path: str) -> float:
    request = urllib.request.Request(f"{lab.url}{path}", headers={"Authorization": f"token {lab.token}"})
    begun = time.perf_counter()
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        answer.read()
    return time.perf_counter() - begun


def _pages(stack: ExitStack, lab: Lab) -> dict[str, float]:
    """Return what a page takes to paint the first rows, ours and its own."""
    page = stack.enter_context(open_chromium()).new_page(viewport={"width": 1440, "height": 980})
    page.set_default_timeout(TIMEOUT * 1000)
    page.goto(f"{lab.url}lab?token={lab.token}&reset")
    page.wait_for_function("() => window.jupyterapp?.restored")
    page.wait_for_function("() => document.activeElement.closest('.jp-Launcher')")
    files = _painted(page, "filebrowser:open-path", {"path": "many"}, ".jp-DirListing-item[title*='digits-0000']")
    jobs = _painted(page, "distdl:focus-sidebar", {}, "#distdl-sidebar .dd-job:not(.dd-job-waiting)")
    return {"first rows": jobs, "first rows, peer": files}


def _painted(page: Page, command: str, given: dict[str, str], row: str) -> float:
    return float(page.evaluate(PAINTED, [command, given, row])) / 1000


if __name__ == "__main__":
    report.main(measure, turns=5)
