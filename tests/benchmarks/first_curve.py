"""From ``pip install`` to the first curve: what a new user waits for who enters the tutorial's blocks at once.

``python -m tests.benchmarks.first_curve``. Each turn is a new environment, JupyterLab and Chromium; the
front end of the clone is built already. Packages come from where pip finds them, mostly its cache: a download comes on
top.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from playwright.sync_api import Browser

from tests.benchmarks import report
from tests.benchmarks.report import Report
from tests.browser import pages
from tests.browser.conftest import open_chromium
from tests.browser.newcomer import FIRST_JOB, Newcomer
from tests.docs.blocks import blocks

PIP, LAB, CELLS, ALL = "pip install", "jupyter lab, to an open notebook", "the cells, to the first curve", "all of it"


def measure(turns: int) -> Iterator[Report]:
    """Yield one table."""
    versions = report.versions("distdl-jupyter", "jupyterlab", "torch")
    table = Report("From `pip install` to the first curve", "s", versions)
    folder = Path(tempfile.mkdtemp(prefix="distdl-first-curve-"))
    try:
        with open_chromium() as chromium:
            taken = [_first_curve(folder / str(turn), chromium) for turn in range(turns)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name in (PIP, LAB, CELLS, ALL):
        table.value(name, [one[name] for one in taken], note="packages need no download" if name == PIP else "")
    yield table


def _first_curve(folder: Path, chromium: Browser) -> dict[str, float]:
    """Follow the tutorial to its first curve; return the seconds of each part."""
    folder.mkdir()
    newcomer = Newcomer(folder, chromium, built=True)
    try:
        environment, activate, pip, lab = newcomer.install()
        newcomer.enter(environment)
        newcomer.enter(activate)
        moments = [time.monotonic()]
        newcomer.enter(pip)
        moments.append(time.monotonic())
        newcomer.enter(lab)
        newcomer.open_notebook()
        moments.append(time.monotonic())
        cells = [newcomer.run_cell(block.text) for block in blocks(FIRST_JOB)[:3]]
        pages.curves(cells[-1]).first.wait_for(state="attached")
        moments.append(time.monotonic())
        pages.says(cells[-1], "Completed")
    finally:
        newcomer.close()
    parts = [later - earlier for earlier, later in pairwise(moments)]
    return dict(zip((PIP, LAB, CELLS, ALL), [*parts, moments[-1] - moments[0]], strict=True))


if __name__ == "__main__":
    report.main(measure, turns=3)
