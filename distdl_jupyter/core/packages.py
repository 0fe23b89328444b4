"""Checks the packages of a job and reads requirements files, so that a spec does not depend on other files.

A requirements file has pip's format, or is a lock file (``pylock.toml``, PEP 751) or a script with inline dependencies
(PEP 723). Requirements that other machines cannot reach are rejected.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.worker.secret_patterns import mask

#: The options that request packages.
FIELDS = ("pip_packages", "conda_packages", "requirements")
#: The programs that install conda packages; the first available one is used.
CONDA_PROGRAMS = ("mamba", "micromamba", "conda")
#: The block of a script's metadata (packaging.python.org/en/latest/specifications/inline-script-metadata).
_SCRIPT_METADATA = re.compile(r"(?m)^# /// script\s*$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
#: An address with its scheme, user and password, and host.
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://(?:([^\s;\"'/]*)@)?([^\s;\"'/:]*)[^\s;\"']*", re.IGNORECASE)
#: A line of requirements that only this machine can read.
_LOCAL_REQUIREMENT = re.compile(r"[./~]|file:|-[erc]\b|--(editable|requirement|constraint)\b")
_FORMATS_HINT = "Use requirements.txt, pylock.toml, or a script with inline dependencies (PEP 723)."


def check_packages(value: Any, field: str) -> tuple[str, ...] | None:
    """Return requirements such as ``numpy>=2``, or None if there are none. Raises InvalidSpec, also for passwords."""
    if isinstance(value, str):  # as typed on a magic line
        value = value.replace(",", " ").split()
    is_list = isinstance(value, list | tuple) and all(isinstance(package, str) for package in value)
    packages = tuple(filter(None, map(str.strip, value))) if is_list else ()
    if not is_list or any(package.startswith("-") or "\n" in package for package in packages):
        text = f"{field} must be a list of packages, not {value!r}."
        hint = 'Use a list such as ["numpy>=2", "webdataset==1.0.2"].'
        raise InvalidSpec(text, code="packages-not-a-list", field=field, hint=hint)
    _reject_passwords("\n".join(packages), field)
    return packages or None


def is_lock_file(text: str) -> bool:
    """Return whether requirements are a lock file (PEP 751)."""
    return re.search(r"(?m)^lock-version\s*=", text) is not None


def read_requirements(source: str, folder: Path) -> str:
    """Return the text of a requirements file, with a newline at its end; "" for none. Raises InvalidSpec.

    A path is relative to ``folder``; a ``source`` that ends with a newline is already the text.
    """
    text = source if not source or source.endswith("\n") else _read_file(folder / Path(source).expanduser())
    _reject_passwords(text, "requirements")
    if is_lock_file(text):
        return text
    text = re.sub(r"(?m)(^|\s)#.*$", "", re.sub(r"\\\r?\n", " ", text))  # joins continued lines
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if local := next((line for line in lines if _LOCAL_REQUIREMENT.match(line)), ""):
        hint = "Modules in the notebook's folder are sent automatically. Otherwise, use a wheel that nodes can load."
        message = f"requirements contains {local!r}, which does not exist on other machines."
        raise _make_error("requirements-local-path", message, hint)
    return "".join(f"{line}\n" for line in lines)


def _make_error(code: str, message: str, hint: str) -> InvalidSpec:
    return InvalidSpec(message, code=code, field="requirements", hint=hint)


def _read_file(path: Path) -> str:
    if path.suffix in (".lock", ".yml", ".yaml"):
        message = f"requirements cannot be {path.name}, because only another tool reads that file."
        hint = f"{_FORMATS_HINT} For conda, list the packages in conda_packages."
        raise _make_error("requirements-file-of-other-tool", message, hint)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text file"
        message = f"requirements cannot be read from {path}: {reason}."
        raise _make_error("requirements-unreadable", message, _FORMATS_HINT) from None
    return parse_script(text, path.name) if path.suffix == ".py" else text.rstrip("\n") + "\n"


def declares_packages(script: str) -> bool:
    """Return whether a script's comments declare its dependencies (PEP 723)."""
    return _SCRIPT_METADATA.search(script) is not None


def parse_script(text: str, name: str) -> str:
    """Return the dependencies that a script declares, one per line. Raises InvalidSpec."""
    import tomllib  # few jobs need it

    match, reason = _SCRIPT_METADATA.search(text), "it has no inline dependencies (PEP 723)"
    if match is not None:
        try:
            metadata = tomllib.loads(re.sub("(?m)^# ?", "", match["content"]))
            return "".join(f"{dependency}\n" for dependency in metadata.get("dependencies", []))
        except (tomllib.TOMLDecodeError, TypeError) as error:
            reason = str(error)
    hint = 'Begin it with the lines # /// script, # dependencies = ["numpy"], # ///.'
    raise _make_error("script-without-dependencies", f"requirements cannot be read from {name}: {reason}.", hint)


def _reject_passwords(text: str, field: str) -> None:
    """Raise InvalidSpec for an address with a password, because requirements are stored and shown."""
    for match in _ADDRESS.finditer(text):
        scheme, user, host = match.groups(default="")
        if ":" in user or (user and not scheme.endswith("ssh")) or mask(match[0]) != match[0]:
            text = f"{field}: the address at {host} contains a password, which would be stored with the job."
            is_conda = field == "conda_packages"
            variable, file = ("CONDA_CHANNELS", ".condarc") if is_conda else ("PIP_INDEX_URL", "pip.conf or .netrc")
            hint = f"Set the environment variable {variable}, or use {file} on the nodes."
            raise InvalidSpec(text, code="requirements-password", field=field, hint=hint)


def list_installers() -> list[str]:
    """Return the package installers of this machine: pip, uv and the programs in ``CONDA_PROGRAMS``."""
    pip = ["pip"] if importlib.util.find_spec("pip") else []
    return pip + [name for name in ("uv", *CONDA_PROGRAMS) if find_program(name)]


def find_program(name: str) -> str | None:
    """Return the path of a program on the PATH, next to this interpreter, or where uv installs itself, or None."""
    folders = (str(Path(sys.executable).parent), str(Path("~/.local/bin").expanduser()))
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *folders]))
