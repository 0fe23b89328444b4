"""MLflow and Weights & Biases beside the environment of the tests: what of them it lacks."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

#: What a user installs with the extras of the same trackers.
WANTED = ("mlflow>=3.4", "wandb>=0.19")
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet")


def installed() -> Path:
    """Return the folder to put on PYTHONPATH; it is filled once."""
    folder = Path(sys.prefix) / "trackers"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / ".installed"
        if not (done.exists() and done.read_text() == repr(WANTED)):
            report = subprocess.run([*_PIP, "--dry-run", "--report", "-", *WANTED], check=True, capture_output=True)
            missing = [f"{one['metadata']['name']}=={one['metadata']['version']}"
                       for one in json.loads(report.stdout)["install"]]  # fmt: skip
            subprocess.run([*_PIP, "--no-deps", "--target", folder, *missing], check=True)
            done.write_text(repr(WANTED))
    return folder
