"""What importing the package costs more than starting Python: ``python tests/benchmarks/import_cost.py``.

Prints medians of whole processes that ran in turn, and the difference. The promise is under 100 ms.
"""

import statistics
import subprocess
import sys
import time

CASES = {
    "python -c pass": "pass",
    "import distdl_jupyter": "import distdl_jupyter",
    "attach and list (client)": "import distdl_jupyter; distdl_jupyter.jobs",
    "inside a rank (log, progress)": "from distdl_jupyter import log, progress",
    "import numpy": "import numpy",
}


def main(rounds: int = 15) -> None:
    """Run the cases in turn, so that a slow moment of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(rounds + 1):
        for name, code in CASES.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(taken[1:]) for name, taken in times.items()}
    bare = medians["python -c pass"]
    print(f"{'':32}{'median ms':>10}{'more ms':>10}{'ratio':>8}")
    for name, median in medians.items():
        print(f"{name:32}{1000 * median:10.1f}{1000 * (median - bare):10.1f}{median / bare:8.2f}")


if __name__ == "__main__":
    main()
