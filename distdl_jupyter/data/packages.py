"""Builds and caches an environment with a job's packages on this machine, once for each set of packages.

``BASE/environments/DIGEST/`` is a virtual (or conda) environment that falls back to the packages of this interpreter.
It is complete when its file ``ready.json`` exists; an incomplete one is rebuilt. Other programs that need the same
environment wait for its lock, a file beside it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from distdl_jupyter import permissions
from distdl_jupyter.core.data import CONDA_PROGRAMS, find_program, is_lock_file, list_installers
from distdl_jupyter.node.data_cache import Cache, StagingFailed, mask_secrets

#: The name in progress bars and error messages. Names of data sources never contain a space.
LABEL = "Python packages"
_READY_FILE = "ready.json"
#: Maximum number of lines of an installer's error output in a message.
_MAX_LINES = 12
#: Maximum number of characters of that output in a message.
_MAX_CHARACTERS = 1500
#: Download progress of pip (``--progress-bar raw``).
_PROGRESS_PATTERN = re.compile(r"Progress (\d+) of (\d+)")
_ERROR_PREFIX = re.compile(r"^(?:ERROR|error|CRITICAL|PackagesNotFoundError|.*Error): ?")
_PTH_FILE = "distdl-base.pth"


@dataclass(frozen=True, slots=True)
class PackageRequest:
    """The packages of a job. ``modules`` must be importable with them; ``variables`` configure the installers."""

    pip: Sequence[str] = ()
    conda: Sequence[str] = ()
    requirements: str = ""
    modules: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the requested packages in a fixed order."""
        return {"pip": sorted(self.pip), "conda": sorted(self.conda), "requirements": self.requirements}

    def get_folder(self, cache: Cache) -> Path:
        """Return the folder of the environment for this interpreter and these packages."""
        content = [sys.version, sys.prefix, self.to_json()]
        return cache.base / "environments" / hashlib.sha256(json.dumps(content).encode()).hexdigest()[:40]


def from_options(options: Any) -> PackageRequest:
    """Return the packages in a job's options."""
    return PackageRequest(options.pip_packages, options.conda_packages, options.requirements)


def find_environment(request: PackageRequest, cache_directory: str = "") -> str:
    """Return the Python of a complete environment, or "" if there is none or if no packages are requested."""
    if not any(request.to_json().values()):
        return ""
    folder = request.get_folder(Cache(cache_directory))
    return _get_python_path(folder) if (folder / _READY_FILE).is_file() and permissions.is_own(folder) else ""


def find_missing_packages(spec: Any) -> PackageRequest | None:
    """Return the packages to install for a job, or None if there are none or if the job's Python already has them."""
    request = from_options(spec)
    content = request.to_json()
    if not any(content.values()):
        return None
    with contextlib.suppress(OSError, ValueError, IndexError):
        if json.loads((Path(spec.python).parents[1] / _READY_FILE).read_text(encoding="utf-8")) == content:
            return None
    return request


class PackageEnvironment:
    """An environment. ``on_progress`` is called with the received and total bytes, and 1 at the end (0 before)."""

    def __init__(self, request: PackageRequest, cache: Cache, on_progress: Callable[[int, int, int], None]) -> None:
        self._request = request
        self._cache = cache
        self._on_progress = on_progress
        self._folder = request.get_folder(cache)

    def make(self) -> str:
        """Return the environment's Python, building the environment if needed. Raises StagingFailed."""
        self._cache.prepare()
        permissions.make_private(self._folder.parent)
        with self._folder.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (python := find_environment(self._request, str(self._cache.base))):
                self._on_progress(0, 1, 0)
                python = self._build()
            self._require_modules(python)
        self._on_progress(1, 1, 1)
        return python

    def _build(self) -> str:
        if self._folder.exists():  # an incomplete environment
            permissions.make_private(self._folder)
            shutil.rmtree(self._folder)
        self._folder.mkdir(mode=0o700)
        python = _get_python_path(self._folder)
        if self._request.conda:
            self._run(_build_conda_command(self._folder, self._request.conda), "conda")
        else:
            self._run([sys.executable, "-m", "venv", "--without-pip", str(self._folder)], "venv")
        self._link_base()
        if self._request.pip or self._request.requirements:
            self._run(self._build_pip_command(python), "pip")
        temporary = self._folder / f".{_READY_FILE}"
        temporary.write_text(json.dumps(self._request.to_json()), encoding="utf-8")
        temporary.replace(self._folder / _READY_FILE)
        return python

    def _link_base(self) -> None:
        """Make the packages of this interpreter visible in the environment, after its own."""
        site_packages = sysconfig.get_path("purelib", "posix_prefix", {"base": str(self._folder)})
        user_paths = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        paths = [path for path in (*site.getsitepackages(), *user_paths) if Path(path).is_dir()]
        lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in paths)
        Path(site_packages, _PTH_FILE).write_text(lines, encoding="utf-8")

    def _build_pip_command(self, python: str) -> list[str]:
        """Write a requirements file, because command lines are public, and return pip's command line."""
        files = []
        if self._request.pip:
            files.append(self._folder / "packages.txt")
            files[-1].write_text("\n".join(self._request.pip) + "\n", encoding="utf-8")
        if self._request.requirements:
            files.append(
                self._folder / ("pylock.toml" if is_lock_file(self._request.requirements) else "requirements.txt")
            )
            files[-1].write_text(self._request.requirements, encoding="utf-8")
        options = ["--no-input", "--disable-pip-version-check", "--progress-bar", "raw", "--no-warn-script-location"]
        pip = [sys.executable, "-m", "pip", "--python", python, "install", *options]
        if "pip" not in list_installers():
            if not (uv := find_program("uv")):
                text = f"{sys.executable} has no pip, and uv is not on the PATH."
                raise StagingFailed(text, f"Install pip: {sys.executable} -m ensurepip", LABEL)
            pip = [uv, "pip", "install", "--python", python]
        return [*pip, *(argument for file in files for argument in ("-r", str(file)))]

    def _run(self, command: Sequence[str], installer: str) -> None:
        """Run an installer and show its progress. Raises StagingFailed."""
        environment = {**os.environ, **self._request.variables}
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise StagingFailed(f"Cannot start {command[0]} ({error.strerror}).", source=LABEL) from None
        with process:
            assert process.stdout is not None
            last_lines = self._show_progress(process.stdout)
        if code := process.returncode:
            text = f"{installer} exited with code {code}: {_extract_error(last_lines)}"
            raise StagingFailed(text, "Correct the packages of the job.", LABEL)

    def _show_progress(self, output: IO[str]) -> list[str]:
        """Show the progress in an installer's output, and return its last lines."""
        last_lines: deque[str] = deque(maxlen=200)
        finished = total = 0
        for line in output:
            if match := _PROGRESS_PATTERN.match(line):
                received, size = int(match[1]), int(match[2])
                if received == 0 or size != total:
                    finished, total = finished + total, size
                self._on_progress(finished + received, finished + total, 0)
            else:
                last_lines.append(line.rstrip())
        return list(last_lines)

    def _require_modules(self, python: str) -> None:
        script = "import importlib.util, sys; print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"
        names = sorted({name.partition(".")[0] for name in self._request.modules})
        process = subprocess.run([python, "-c", script, *names], capture_output=True, text=True, check=False)
        if process.returncode:
            line = (process.stderr.strip().splitlines() or ["it does not start"])[-1]
            raise StagingFailed(
                f"Cannot use the Python of the job's environment: {line}", f"Remove the folder {self._folder}.", LABEL
            )
        if missing := process.stdout.split():
            raise StagingFailed(
                f"{missing[0]} is neither in the job's packages nor installed for {sys.executable}.",
                f"Add {missing[0]} to pip_packages, or install it: {sys.executable} -m pip install {missing[0]}",
                LABEL,
            )


def _get_python_path(folder: Path) -> str:
    return str(folder / "bin" / "python")


def _build_conda_command(folder: Path, packages: Sequence[str]) -> list[str]:
    configured = os.environ.get("MAMBA_EXE") or os.environ.get("CONDA_EXE")
    program = next(filter(None, map(find_program, CONDA_PROGRAMS)), configured)
    if not program:
        raise StagingFailed(
            "conda_packages needs conda, mamba or micromamba on the PATH.",
            "Install one of them on the node, or move the packages to pip_packages.",
            LABEL,
        )
    python = f"python={sys.version_info.major}.{sys.version_info.minor}"
    return [program, "create", "--yes", "--prefix", str(folder), python, *packages]


def _extract_error(lines: Sequence[str]) -> str:
    """Return the error message in an installer's output, without passwords."""
    lines = [line for line in lines if line.strip()]
    error_indices = (index for index, line in enumerate(lines) if _ERROR_PREFIX.match(line))
    start = next(error_indices, max(len(lines) - _MAX_LINES, 0))
    text = " ".join(_ERROR_PREFIX.sub("", line, count=1).strip() for line in lines[start : start + _MAX_LINES])
    return mask_secrets(text)[:_MAX_CHARACTERS] or "no output."
