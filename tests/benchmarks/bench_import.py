"""What importing the package costs more than starting Python, beside other imports of a notebook.

``python -m tests.benchmarks.bench_import``. Whole processes that run in turn; the time of a bare ``python -c pass`` of
the same turn is taken off. ipyparallel is imported in the peers' environment, where that is there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from tests.benchmarks import report
from tests.benchmarks.peers import environment
from tests.benchmarks.report import Report, interleaved

OURS = {
    "import distdl_jupyter": "import distdl_jupyter",
    "attach and list": "import distdl_jupyter; distdl_jupyter.jobs",
    "submit": "import distdl_jupyter; distdl_jupyter.submit",
    "inside a rank (log, progress)": "from distdl_jupyter import log, progress",
}
PEERS = {"import ipywidgets": "import ipywidgets", "import numpy": "import numpy", "import json": "import json"}
#: What the project allows itself for the import of the package, in milliseconds.
GOAL_MS = 100


def measure(turns: int) -> Iterator[Report]:
    """Yield one table."""
    peers = environment()
    bare = {sys.executable: "bare", peers.python: "bare of the peers"}
    codes = {name: (sys.executable, code) for name, code in {**OURS, **PEERS}.items()}
    if "ipyparallel" not in peers.missing:
        codes["import ipyparallel"] = (peers.python, "import ipyparallel")
    codes |= {name: (python, "pass") for python, name in bare.items()}
    times = interleaved({name: partial(_run, *one) for name, one in codes.items()}, turns)
    more = {
        name: [max(one - least, 1e-6) for one, least in zip(times[name], times[bare[python]], strict=True)]
        for name, (python, _) in codes.items()
    }
    versions = {**report.versions("distdl-jupyter", "ipywidgets", "numpy"), **peers.versions("ipyparallel")}
    table = Report("An import, beside a bare start of Python", "ms", versions)
    for name in OURS:
        table.value(name, more[name], at_most=GOAL_MS if name == "import distdl_jupyter" else None)
    for peer in (*PEERS, "import ipyparallel"):
        if peer in more:
            table.compare("import distdl_jupyter", more["import distdl_jupyter"], peer, more[peer])
        else:
            table.missing("import distdl_jupyter", peer, peers.missing["ipyparallel"])
    yield table


def _run(python: str, code: str) -> None:
    subprocess.run([python, "-c", code], check=True)


if __name__ == "__main__":
    report.main(measure, turns=15)
