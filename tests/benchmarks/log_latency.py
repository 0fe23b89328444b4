"""How long a line that a rank prints takes until a browser shows it, at 1,000 lines a second.

``python -m tests.benchmarks.log_latency``. A real JupyterLab and a real Chromium: the job's page in Lab, and the panel
in a notebook, beside an ordinary cell that prints as many lines itself. Two ranks print 500 lines a second each. A
line counts as shown when the page's document has it or a later one of its rank, or the log's end, where a rank's last
lines may stand above those of the other and out of sight; the clock of the rank is held against the page's own
(``performance.timeOrigin``), both of this machine. The first two seconds do not count.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from playwright.sync_api import TimeoutError as TookTooLong

import distdl_jupyter
from distdl_jupyter.core.store import JobStore
from distdl_jupyter.node import processes
from tests.benchmarks import report
from tests.benchmarks.launchers import SUBJECTS, as_in_a_cell, lab_of_this_environment, workplace
from tests.benchmarks.report import Report
from tests.browser.conftest import TIMEOUT, Book, open_chromium

RANKS, PACE, SECONDS, SKIPPED = 2, 500.0, 12.0, 2.0
#: Watches an element and keeps for each rank which line was the newest, and when. The newest lines stand at the end.
WATCH = """
(selector) => {
  const seen = (window.benchSeen = {});
  const look = () => {
    const now = performance.timeOrigin + performance.now();
    const places = [...document.querySelectorAll(selector)];
    for (const place of places.slice(-80)) {
      for (const found of place.textContent.slice(-4000).matchAll(/(\\d):(\\d+) loss/g)) {
        const list = (seen[found[1]] ??= []);
        const number = Number(found[2]);
        if (!list.length || list[list.length - 1][0] < number) list.push([number, now]);
      }
    }
  };
  window.benchWatch?.disconnect();
  window.benchWatch = new MutationObserver(look);
  window.benchWatch.observe(document.body, { childList: true, subtree: true, characterData: true });
}
"""


def measure(turns: int) -> Iterator[Report]:
    """Yield one table: the medians over the turns of the median, and of the 99th percentile."""
    found: dict[str, list[list[float]]] = {}
    with workplace() as (scratch, stack):
        book = stack.enter_context(notebook(scratch))
        ways: dict[str, Callable[[str], None]] = {
            "job page in Lab": partial(_job_page, book),
            "panel in a notebook": partial(_panel, book),
            "a cell that prints": partial(_cell, book),
        }
        for turn in range(turns):
            for number, (name, way) in enumerate(ways.items()):
                told = str(scratch / f"clocks-{turn}-{number}")
                way(told)
                found.setdefault(name, []).append(_latencies(told, book))
    versions = report.versions("distdl-jupyter", "jupyterlab", "ipykernel")
    table = Report("A line from print() to the browser, 1,000 lines a second", "ms", versions)
    (_, *_, peer) = ways
    for name in list(ways)[:-1]:
        for percent in (50, 99):
            ours, theirs = ([_percentile(turn, percent) for turn in found[one]] for one in (name, peer))
            title = f"{name}, p{percent}"
            table.value(title, ours, at_most=250 if percent == 99 else None)
            table.compare(title, ours, f"{peer}, p{percent}", theirs)
    yield table


@contextmanager
def notebook(scratch: Path) -> Iterator[Book]:
    """Yield JupyterLab of this environment with an empty notebook, in a browser."""
    home = scratch / "lab"
    lab = lab_of_this_environment(home)
    lab.write("bench.ipynb", ["1", "2"])
    with ExitStack() as stack:
        os.environ["DISTDL_HOME"] = str(home / "distdl")
        stack.callback(lambda: [processes.kill_job(one.id) for one in JobStore(home / "distdl").list_folders()])
        lab.start()
        stack.callback(lab.stop)
        page = stack.enter_context(open_chromium()).new_page(viewport={"width": 1440, "height": 980})
        page.set_default_timeout(TIMEOUT * 1000)
        book = Book(page, lab)
        book.open_desk("bench.ipynb")
        yield book


def _submitted(told: str) -> distdl_jupyter.Job:
    lines = as_in_a_cell("lines.py", "on_ranks")
    return distdl_jupyter.submit(lines, (PACE, SECONDS, told), process_count_per_node=RANKS)


def _job_page(book: Book, told: str) -> None:
    job = _submitted(told)
    page = book.open_job(job.id)
    page.locator(".dd-log-sheet").wait_for(state="attached")
    book.page.evaluate(WATCH, f"#distdl-job-{job.id} .dd-text")
    Path(f"{told}-go").touch()
    _until_shown(book, [int(PACE * SECONDS) - 1] * RANKS)
    job.result(TIMEOUT)
    book.page.evaluate("() => window.jupyterapp.shell.currentWidget.close()")


def _panel(book: Book, told: str) -> None:
    job = _submitted(told)
    _set(book, f"from distdl_jupyter import attach, panel\npanel(attach({job.id!r}))")
    book.cell(0).locator(".dd-log-sheet").wait_for(state="attached")
    book.page.evaluate(WATCH, ".jp-OutputArea .dd-text")
    Path(f"{told}-go").touch()
    _until_shown(book, [int(PACE * SECONDS) - 1] * RANKS)
    job.result(TIMEOUT)
    _set(book, "1")


def _cell(book: Book, told: str) -> None:
    """One process prints as many lines as the ranks do together."""
    book.page.evaluate(WATCH, ".jp-OutputArea-output pre")
    code = (SUBJECTS / "lines.py").read_text()
    _set(book, f"{code}\nprint_lines(0, {RANKS * PACE}, {SECONDS}, {told + '-0'!r})")
    _until_shown(book, [int(RANKS * PACE * SECONDS) - 1])
    _set(book, "1")


def _until_shown(book: Book, last: list[int]) -> None:
    """Wait until the page shows the end of the log: the last line of a rank, and then nothing new for a second."""
    shown = """(last) => {
        const newest = Math.max(...Object.values(window.benchSeen).map((list) => list.at(-1)[1]));
        const quiet = performance.timeOrigin + performance.now() - newest > 1000;
        return quiet && last.some((number, rank) => window.benchSeen[rank]?.at(-1)[0] === number);
    }"""
    try:
        book.page.wait_for_function(shown, arg=last, polling=200)
    except TookTooLong:
        seen: dict[str, list[list[float]]] = book.page.evaluate("() => window.benchSeen")
        came = {rank: list_[-1][0] for rank, list_ in seen.items()}
        raise SystemExit(f"The page showed lines up to {came} of {last} in {TIMEOUT:g} s.") from None


def _set(book: Book, code: str) -> None:
    """Give the first cell a text and run it, without waiting."""
    book.page.evaluate(
        """(code) => {
            const { commands, shell } = window.jupyterapp;
            const content = shell.currentWidget.content;
            content.widgets[0].model.sharedModel.setSource(code);
            content.activeCellIndex = 0;
            void commands.execute('notebook:run-cell');
        }""",
        code,
    )


def _latencies(told: str, book: Book) -> list[float]:
    """Return the seconds that each line took, of those that count."""
    seen: dict[str, list[list[float]]] = book.page.evaluate("() => window.benchSeen")
    end = max(list_[-1][1] for list_ in seen.values())
    taken = []
    for rank, list_ in seen.items():
        clocks = json.loads(Path(f"{told}-{rank}").read_text())
        shown = iter(list_)
        newest, when = next(shown)
        for number, clock in enumerate(clocks):
            while newest < number:
                newest, when = next(shown, (len(clocks), end))
            if clock >= clocks[0] + SKIPPED:
                taken.append(when / 1000 - clock)
    if not taken:
        raise SystemExit("The page showed no line.")
    return taken


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


if __name__ == "__main__":
    report.main(measure, turns=3)
