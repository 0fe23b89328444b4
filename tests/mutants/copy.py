"""A copy of the repository in which mutants live, and pytest run there: everything imports the copy's code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
_BUILT = ("distdl_jupyter/widgets/static", "distdl_jupyter/labextension")
_MODULES = ("labextension/node_modules", "tests/azurite/node_modules")
#: A test that takes longer hangs, with time to spare for a busy machine.
_A_TEST = 240
_MARK = "DISTDL_MUTANTS"


class Copy:
    """A clone of the last commit in a temporary folder; ``with`` removes it, and what was left running there."""

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="distdl-mutants-", ignore_cleanup_errors=True)
        self.root = Path(self._home.name, "copy")
        self.commit = _output("git", "rev-parse", "--short", "HEAD")
        _output("git", "clone", "--quiet", "--shared", ".", str(self.root))
        self.take_built()
        for name in _MODULES:
            if (ROOT / name).exists():
                (self.root / name).symlink_to(ROOT / name)
        #: Tests that fail without a mutant, which tell nothing, and some that do not.
        self._broken: set[str] = set()
        self._sound: set[str] = set()
        self._environment = {**os.environ, "PYTHONPATH": str(self.root), _MARK: self._home.name}
        code = "import distdl_jupyter; print(distdl_jupyter.__file__)"
        found = subprocess.check_output([sys.executable, "-P", "-c", code], env=self._environment, cwd="/", text=True)
        if self.root not in Path(found).parents:
            raise RuntimeError(f"The code under test would be {found.strip()}, not the copy.")

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_all()
        self._home.cleanup()

    def build(self) -> bool:
        """Build the front end; say whether that went well. ``take_built`` takes back the one of the repository."""
        command = ["npm", "--prefix", "labextension", "run", "--silent", "build"]
        return subprocess.run(command, cwd=self.root, env=self._environment, capture_output=True).returncode == 0

    def take_built(self) -> None:
        for name in _BUILT:
            shutil.rmtree(self.root / name, ignore_errors=True)
            shutil.copytree(ROOT / name, self.root / name)

    def killer(self, tests: list[str], *, everything: bool) -> str:
        """Run tests until one fails; return its name, or "" when none fails. It must fail twice to count."""
        passed = set(self._broken)
        while failed := next(iter(self.failed(["-x", *tests, *_without(passed)], everything=everything)), ""):
            if "::" not in failed or self.failed([failed], everything=everything):
                return failed
            passed.add(failed)
        return ""

    def trusts(self, test: str) -> bool:
        """Say whether a test passes without a mutant; one that does not is left out from now on."""
        if test not in self._sound:
            (self._broken if self.failed([test], everything=True) else self._sound).add(test)
        return test in self._sound

    def failed(self, arguments: list[str], *, everything: bool = False) -> set[str]:
        """Run pytest; return the names of the tests, or of their files, that failed."""
        cache = Path(self._home.name, "cache")
        shutil.rmtree(cache, ignore_errors=True)
        run = self._pytest(f"--timeout={_A_TEST}", "-o", f"cache_dir={cache}", *arguments, everything=everything)
        self._end_all()
        if run.returncode in {0, 5}:  # all passed; nothing to run
            return set()
        told = cache / "v/cache/lastfailed"
        names = set(json.loads(told.read_text())) if told.exists() else set()
        if not names and "conftest" in run.stderr:  # it could not be imported
            return {"tests/conftest.py"}
        if not names and "not found" not in run.stderr:  # the killer of last time may be gone
            raise RuntimeError(run.stdout[-2000:] + run.stderr[-2000:])
        return names

    def selected(self) -> set[str]:
        """Return the names of all tests of the quick selection, and of their files."""
        names = self._pytest("--collect-only", "tests").stdout.splitlines()
        return {*names, *(name.partition("::")[0] for name in names)}

    def _pytest(self, *arguments: str, everything: bool = False) -> subprocess.CompletedProcess[str]:
        environment = {**self._environment, **({"DISTDL_TESTS": "all"} if everything else {})}
        command = [sys.executable, "-m", "pytest", "-q", *arguments]
        return subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True)

    def _end_all(self) -> None:
        """End what a mutant has left running."""
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get(_MARK) == self._home.name:
                    process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue


def _without(tests: set[str]) -> list[str]:
    return [f"--deselect={test}" for test in tests]


def _output(*command: str) -> str:
    return subprocess.check_output(command, cwd=ROOT, text=True).strip()
