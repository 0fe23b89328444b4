"""Figures for the text, read from the results of the benchmarks: ``{{ warm_horovod }}`` in a page.

A name stands for a row of ``tests/benchmarks/RESULTS.md``. A row that is not there ends the build.
"""

from __future__ import annotations

from tests.benchmarks import results

#: Name -> section, the beginning of the table's title, the row, its peer or "". ``NAME`` is the ratio, ``NAME_time``
#: ours.
ROWS = {
    "first_curve": ("first_curve", "From", "all of it", ""),
    "first_curve_pip": ("first_curve", "From", "pip install", ""),
    "warm_horovod": ("first_step", "Warm", "warm horovod", "horovodrun"),
    "warm_torch": ("first_step", "Warm", "warm torch", "notebook_launcher"),
    "cold_horovod": ("first_step", "Cold", "cold horovod, same script", "horovodrun"),
    "cold_torch": ("first_step", "Cold", "cold torch, same script", "torchrun"),
}


def all_figures() -> dict[str, str]:
    """Return all figures. Raises StopIteration for a row that is not there."""
    sections = dict(results.sections(results.PAGE.read_text()))
    figures: dict[str, str] = {}
    for name, (section, title, row, peer) in ROWS.items():
        table = next(part for part in sections[section].split("\n**") if part.startswith(title))
        lines = (line for line in table.splitlines() if line.startswith(f"| {row} | "))
        cells = next(cells for line in lines if (cells := line.strip("| ").split(" | "))[2] == peer)
        figures |= {f"{name}_time": cells[1], f"{name}_peer": cells[3], name: cells[4]}
    return figures
