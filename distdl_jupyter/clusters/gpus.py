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


def _present() -> list[int]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        answer = subprocess.run(
            [program, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) for line in answer.stdout.split() if line.isdigit()]
