"""The state of the code in git when a job begins: commit, branch, and what was changed since.

Nothing that a repository's own configuration names is run: no hooks, no external diff, no filter, no watcher of files.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path
from shutil import which

from distdl_jupyter.core.environment import GitState

#: Bytes of a diff that are kept; notebooks with their outputs are long.
_LARGEST = 1_000_000
_SECONDS = 20.0
_SAFELY = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "--no-optional-locks")
_PASSWORD = re.compile(r"(://)[^/\s@]*@")


def state(folder: str) -> GitState | None:
    """Return the state of the repository around ``folder``, None without git, a repository, or a commit."""
    if not which("git") or not Path(folder).is_dir():
        return None
    try:
        commit = _run(folder, "rev-parse", "HEAD").strip()
        diff = _run(folder, *_without_filters(folder), "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color",
                    "--ignore-submodules=dirty")  # fmt: skip
        untracked = _run(folder, "ls-files", "--others", "--exclude-standard", "--directory", "--full-name", ":/")
        branch = _run(folder, "rev-parse", "--abbrev-ref", "HEAD").strip()
        remote = _run(folder, "config", "--default", "", "--get", "remote.origin.url").strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return GitState(
        commit, "" if branch == "HEAD" else branch, _PASSWORD.sub(r"\1", remote), diff[:_LARGEST], len(diff) > _LARGEST,
        len(untracked.splitlines()),
    )  # fmt: skip


def _without_filters(folder: str) -> list[str]:
    """Return options that switch off the programs through which the repository itself lets files go (gitattributes)."""
    said = ""
    for scope in ("--local", "--worktree"):
        with contextlib.suppress(subprocess.CalledProcessError):  # several trees without configurations of their own
            said += _run(folder, "config", scope, "--includes", "--name-only", "--null", "--list")
    filters = {name.rpartition(".")[0] for name in said.split("\0") if name.startswith("filter.")}
    settings = [f"{one}.{key}" for one in sorted(filters) for key in ("clean=", "process=", "required=false")]
    return [word for setting in settings for word in ("-c", setting)]


def _run(folder: str, *words: str) -> str:
    """Return what git prints. Raises CalledProcessError, TimeoutExpired, OSError."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", folder, *_SAFELY, *words], check=True, capture_output=True, timeout=_SECONDS,
        env={**environment, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.stdout.decode(errors="replace")
