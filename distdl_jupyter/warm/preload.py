"""Preloads modules in a template before jobs need them, and checks that jobs are not affected.

A preloaded module was imported in the template's environment, so a job can use it only if all variables that the import
read have the same values in the job. A module is reported and not preloaded again if its import reads a per-process
variable (such as a rank or PATH) or the whole environment, starts a thread, or opens a GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.core import files
from distdl_jupyter.worker import installed
from distdl_jupyter.worker.hooks.frameworks import UNFORKABLE_MODULES
from distdl_jupyter.worker.identity import LAUNCHER_VARIABLES

#: Modules whose import iterates over the whole environment, and the prefix of the variables they use.
_KNOWN_READERS = {"tqdm.utils": "TQDM_", "networkx.utils.backends": "NETWORKX_"}
#: Variables that launchers set for each rank, which a template cannot have.
_RANK_VARIABLES = re.compile(
    r"(?:GLOBAL|NODE|ROLE|DISTDL|DISTDL_LOCAL|DISTDL_NODE|JSM_NAMESPACE|PMIX|MV2_COMM_WORLD)_RANK|"
    r"(?:ROLE|DISTDL)_WORLD_SIZE|MASTER_(?:ADDR|PORT)|TORCHELASTIC_\w+|(?:GLOO|NCCL)_SOCKET_IFNAME|"
    + "|".join(name for launcher in LAUNCHER_VARIABLES for name in launcher if name)
)
#: Variables that may differ from shell to shell for the same job.
_SHELL_VARIABLES = ("PATH", "PWD", "OLDPWD", "SHLVL", "_")
#: Terminal variables, which do not affect imports in ranks, because they have no terminal.
_TERMINAL_VARIABLES = ("TERM", "COLUMNS", "LINES", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION")
#: Variables that Python itself and C libraries read when loaded, which cannot be recorded.
_LOAD_VARIABLES = re.compile(
    r"(?:LD|DYLD|MALLOC|GLIBC|LC|OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|VECLIB|DNNL|ONEDNN|ATEN|TORCH|PYTORCH|CUDA|CUDNN|CUBLAS"
    rf"|TF|XLA)_|PYTHON|(?:LANG|LANGUAGE|TZ)$|{'|'.join(_KNOWN_READERS.values())}"
)
#: Exceptions from ``_LOAD_VARIABLES`` that may differ: they are set right after the fork, or read only at the first use
#: of a GPU or of a TensorFlow strategy.
_LATE_VARIABLES = re.compile(
    r"OMP_NUM_THREADS|OPENBLAS_NUM_THREADS|TORCH_WARM_POOL|CUDA_VISIBLE_DEVICES|TF_CONFIG|PYTHONUNBUFFERED"
)
#: Variables that prevent libraries from starting threads during import, as torch's compiler does in some versions if
#: Triton is installed; each job gets its own values afterwards.
NO_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCH_WARM_POOL": "0"}
#: Modules that the supervisor and ranks of a local job always import, besides the backend.
REQUIRED_MODULES = (
    "distdl_jupyter.supervisor.__main__",
    "distdl_jupyter.clusters.local",
    "distdl_jupyter.clusters.agents.run",
    "distdl_jupyter.clusters.agents.agent",
    "distdl_jupyter.views.job_table",
    "distdl_jupyter.worker.rank",
    "distdl_jupyter.worker.failure",
    "cloudpickle",
    "multiprocessing.process",
    "runpy",
    "threadpoolctl",
)


def find_difference(template: Mapping[str, str], job: Mapping[str, str], read_names: set[str]) -> str:
    """Return the first variable that differs and may have affected an import, or "" if there is none.

    ``read_names`` are the variables that Python code read during the imports.
    """
    for name in sorted({*template, *job} - {*_TERMINAL_VARIABLES}):
        is_relevant = name in read_names or (_LOAD_VARIABLES.match(name) and not _LATE_VARIABLES.fullmatch(name))
        if is_relevant and template.get(name) != job.get(name):
            return name
    return ""


class UnforkableModule(Exception):
    """A module must not be preloaded, and this process, which has imported it, must no longer be forked.

    ``names`` are the module and the modules that were being imported when the problem occurred.
    """

    def __init__(self, name: str, reason: str, others: Iterable[str] = ()) -> None:
        super().__init__(f"{name} {reason}")
        self.names = (name, *sorted(set(others) - {name}))
        self.reason = reason


class ImportHistory:
    """The modules that recent jobs have imported, stored in a file. An unreadable file counts as empty."""

    #: Maximum number of modules; the least recently imported are dropped.
    _MAX_MODULES = 10_000

    def __init__(self, path: Path) -> None:
        self._path = path
        data = _read_json(path)
        self._modules: list[str] = [str(name) for name in data.get("modules", ())]
        #: The reason why each unforkable module must not be preloaded.
        self.unforkable: dict[str, str] = {str(key): str(value) for key, value in data.get("unforkable", {}).items()}

    def list_names(self) -> list[str]:
        """Return the modules to import, those of the most recent job first, in the order of their imports."""
        return [name for name in self._modules if not self.is_unforkable(name)]

    def is_unforkable(self, name: str) -> bool:
        """Return whether a module, or one of its parent packages, must not be preloaded."""
        packages = (*UNFORKABLE_MODULES, *self.unforkable)
        return any(name == package or name.startswith(f"{package}.") for package in packages)

    def add(self, names: Iterable[str]) -> None:
        """Add the imports of one more job."""
        self._modules = [*dict.fromkeys([*names, *self._modules])][: self._MAX_MODULES]
        files.write_json(self._path, {"modules": self._modules, "unforkable": self.unforkable})

    def exclude(self, unforkable: UnforkableModule) -> None:
        """Exclude these modules and their submodules from preloading."""
        self.unforkable |= dict.fromkeys(unforkable.names, unforkable.reason)
        self.add(())


def take_imports(job: Path) -> list[str]:
    """Return the reported imports of a job's processes, and remove their files."""
    folder = installed.get_record_folder(job)
    names: dict[str, None] = {}
    for path in sorted(folder.glob("*.json")):
        names |= dict.fromkeys(str(name) for name in _read_json(path).get("modules", ()))
    shutil.rmtree(folder, ignore_errors=True)
    return list(names)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


class Preloader:
    """Imports modules one by one, and checks after each whether this process may still be forked."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        #: The initial modification time and size of every loaded module's file and of every folder in ``sys.path``.
        self._stamps: dict[str, tuple[int, int] | None] = {}
        self._roots = (*installed.list_roots(), f"{Path(__file__).parents[1]}{os.sep}")
        self._checked_count = 0
        self._attempted: set[str] = set()

    def can_load(self, name: str) -> bool:
        """Return whether ``load`` would import anything."""
        return name not in sys.modules and name not in self._attempted

    def load(self, name: str) -> None:
        """Import one module after its parent packages; skip it if the import fails. Raises UnforkableModule.

        In this order, an unforkable package is detected once, not once for each of its modules.
        """
        for module in itertools.accumulate(name.split("."), "{}.{}".format):
            if self.can_load(module):
                self._attempted.add(module)
                with self.recorder, contextlib.suppress(BaseException):
                    importlib.import_module(module)
                self._check(module)

    def _check(self, name: str) -> None:
        loaded_modules = list(sys.modules.values())
        module_files = [getattr(module, "__file__", None) for module in loaded_modules[self._checked_count :]]
        paths = [file for file in module_files if isinstance(file, str) and os.path.isabs(file)]  # noqa: PTH117 - thousands
        self._checked_count = len(loaded_modules)
        self.stamp(paths)
        reads, self.recorder.unforkable_reads = self.recorder.unforkable_reads, []
        if count_threads() > 1:
            raise UnforkableModule(name, "starts a thread when imported")
        if _has_opened_gpu():
            raise UnforkableModule(name, "opens a GPU when imported")
        if reads:
            variable, importing = reads[0]
            others = itertools.chain.from_iterable(modules for _, modules in reads)
            raise UnforkableModule(name, f"reads {variable} when imported (in {importing[0]})", others)
        if outside_paths := [path for path in paths if not path.startswith(self._roots)]:
            raise UnforkableModule(name, f"imports {outside_paths[0]}, which is not an installed module")

    def stamp(self, paths: Iterable[str]) -> None:
        """Record the modification time and size of these files and of the folders in ``sys.path``."""
        for path in (*paths, *sys.path):
            self._stamps.setdefault(path, _stamp(path))

    def find_change(self) -> str:
        """Return the first recorded file or folder that has changed, or "" if none has. 2,000 files take 4 ms."""
        return next((path for path, stamp in self._stamps.items() if _stamp(path) != stamp), "")


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands of paths
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _has_opened_gpu() -> bool:
    """Return whether this process has opened a GPU, whose driver state does not survive a fork."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(entry).startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel")):  # noqa: PTH115
                return True
    return False


def count_threads() -> int:
    """Return the number of threads of this process, including those of C libraries."""
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - a count


class Recorder:
    """A reusable context manager that records reads and writes of ``os.environ``.

    Reads by C libraries are not recorded; see ``_LOAD_VARIABLES``.
    """

    def __init__(self) -> None:
        #: Names of the variables that were read.
        self.read_names: set[str] = set()
        #: Variables that the imports have set, with their values.
        self.new_values: dict[str, str] = {}
        #: Reads of variables that a template cannot have: the variable, and the modules that were being imported, the
        #: innermost first.
        self.unforkable_reads: list[tuple[str, list[str]]] = []
        self._previous: dict[str, str] = {}

    def __enter__(self) -> Recorder:
        global _recorder
        self._previous = dict(os.environ)
        _recorder, os.environ.__class__ = self, _RecordingEnviron
        return self

    def __exit__(self, *_error: object) -> None:
        os.environ.__class__ = os._Environ  # noqa: SLF001 - the class of os.environ; no public one
        self.new_values |= {name: value for name, value in os.environ.items() if self._previous.get(name) != value}

    def record(self, name: str) -> None:
        """Record that the caller's caller has read a variable, or ``_WHOLE_ENVIRONMENT``."""
        stack = traceback.walk_stack(sys._getframe(2))  # noqa: SLF001 - the only way to find the reader
        frames = [(str(frame.f_globals.get("__name__", "?")), frame.f_code.co_name) for frame, _ in stack]
        skipped = ("os", "_collections_abc", "collections.abc", __name__)
        frames = list(itertools.dropwhile(lambda frame: frame[0] in skipped, frames))
        if frames and frames[0][0] in _KNOWN_READERS:
            return
        if name == _WHOLE_ENVIRONMENT or name in _SHELL_VARIABLES or _RANK_VARIABLES.fullmatch(name):
            importing = [module for module, code in frames if code == "<module>" and module != "__main__"]
            self.unforkable_reads.append((name, importing or ["?"]))
        else:
            self.read_names.add(name)


_WHOLE_ENVIRONMENT = "the whole environment"
_recorder = Recorder()


class _RecordingEnviron(os._Environ):  # type: ignore[type-arg]  # noqa: SLF001 - as above
    """The class of ``os.environ`` during the imports."""

    def __getitem__(self, key: Any) -> Any:
        """Return the value and record the name."""
        _recorder.record(str(key))
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        """Iterate, and record that the caller may have read anything."""
        _recorder.record(_WHOLE_ENVIRONMENT)
        return super().__iter__()
