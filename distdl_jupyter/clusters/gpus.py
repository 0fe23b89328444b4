"""Which NVIDIA GPUs this process may use, asked without importing a framework or touching a device."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess


@functools.cache
def visible() -> list[int]:
    """Return the indices of the GPUs that ranks may use: those of nvidia-smi, limited by CUDA_VISIBLE_DEVICES."""
    present = _present()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    wanted = [int(word) for word in chosen.split(",") if word.strip().isdigit()]
    return [index for index in wanted if index in present]


@functools.cache
def name() -> str:
    """Return the model of the first of these GPUs, as nvidia-smi names it; "" without any."""
    models = dict(line.split(", ", 1) for line in _asked("index,name") if ", " in line)
    return next((models[str(index)] for index in visible() if str(index) in models), "")


def _present() -> list[int]:
    return [int(line) for line in _asked("index") if line.isdigit()]


def _asked(fields: str) -> list[str]:
    """Return the lines of nvidia-smi about these fields of each GPU, [] where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        answer = subprocess.run(
            [program, f"--query-gpu={fields}", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.strip().splitlines()
