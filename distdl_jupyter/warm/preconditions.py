"""Whether a job would notice that modules were imported ahead: by its environment, or because they have changed since.

Each answer is the end of one sentence, "" when there is no doubt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from distdl_jupyter.warm.env_recorder import KNOWN_READERS

#: What Python itself and C libraries read when they are loaded, where no recorder sees it.
AT_LOAD = (
    "LD_", "DYLD_", "MALLOC_", "GLIBC_", "PYTHON", "LC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_",
    "VECLIB_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH_", "PYTORCH_", "CUDA_", "CUDNN_", "CUBLAS_", "TF_", "XLA_",
)  # fmt: skip
_AT_LOAD_NAMES = ("LANG", "LANGUAGE", "TZ")
#: Variables with a prefix of those that may differ: they are set right after the fork, or are read only when a GPU, or
#: a strategy of TensorFlow, is first used.
SETTLED_LATER = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCH_WARM_POOL", "CUDA_VISIBLE_DEVICES", "TF_CONFIG",
    "PYTHONUNBUFFERED",
)  # fmt: skip
#: Variables of a terminal, which no rank has: an import that reads them does the same for its output.
_OF_TERMINALS = ("TERM", "COLUMNS", "LINES", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION")


def is_watched(name: str, read: Iterable[str]) -> bool:
    """Say whether a variable may have changed what an import did; ``read`` are those that Python code has read."""
    if name in _OF_TERMINALS:
        return False
    if name in read:
        return True
    if name in SETTLED_LATER:
        return False
    return name in _AT_LOAD_NAMES or name.startswith((*AT_LOAD, *KNOWN_READERS.values()))


def differing(template: Mapping[str, str], job: Mapping[str, str], read: set[str]) -> str:
    """Return the first variable in which the job's environment differs where it matters, "" when there is none."""
    names = {*template, *job}
    return next((n for n in sorted(names) if template.get(n) != job.get(n) and is_watched(n, read)), "")


class Stamps:
    """The state of every loaded module's file and of every folder in which modules are looked for."""

    def __init__(self) -> None:
        self._stamps: dict[str, tuple[int, int] | None] = {}
        self._seen = 0

    def take(self, modules: Iterable[ModuleType]) -> None:
        """Remember the files of these modules and the folders of ``sys.path``, each as it was first seen."""
        for path in filter(None, map(file_of, modules)):
            self._stamps.setdefault(path, _stamp(path))
        for folder in sys.path:
            self._stamps.setdefault(folder, _stamp(folder))

    def changed(self) -> str:
        """Return the first file or folder that is not what it was, "" when all are. 2,000 files take 4 ms."""
        return next((path for path, stamp in self._stamps.items() if _stamp(path) != stamp), "")

    def __len__(self) -> int:
        return len(self._stamps)


def file_of(module: ModuleType) -> str:
    """Return the absolute path of a module's file, "" without one."""
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and os.path.isabs(file) else ""  # noqa: PTH117 - thousands of paths


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - as above
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def relative_path() -> str:
    """Return an entry of ``sys.path`` that means another folder for every job, "" when there is none."""
    return next((entry for entry in sys.path if not os.path.isabs(entry)), "")  # noqa: PTH117 - text, no path


def gpu_in_use() -> bool:
    """Say whether this process has opened a GPU: what the driver set up does not survive a fork."""
    folder = Path("/proc/self/fd")
    for entry in folder.iterdir() if folder.is_dir() else ():
        try:
            target = os.readlink(entry)  # noqa: PTH115 - the name alone counts
        except OSError:
            continue
        if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel")):
            return True
    return False


def threads() -> int:
    """Return how many threads this process has, those of C libraries too (Linux; else those of Python)."""
    folder = Path("/proc/self/task")
    if folder.is_dir():
        return len(os.listdir(folder))  # noqa: PTH208 - a count
    import threading

    return threading.active_count()
