"""A zip of this package's Python sources, for the hosts that run the worker and the agent.

It contains the whole package, because a module with a training function often also imports the code that submits it.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parents[1]
_EARLIEST_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest modification time that zip files support


class PackageZip(NamedTuple):
    """The zip and its digest of 16 hexadecimal digits."""

    digest: str
    content: bytes


@functools.cache
def build_package() -> PackageZip:
    """Return a zip of the ``.py`` files of the package that this process uses, in a folder of its name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(_ROOT.rglob("*.py")):
            entry = zipfile.ZipInfo(path.relative_to(_ROOT.parent).as_posix(), _EARLIEST_DATE)
            entry.external_attr = 0o100600 << 16
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    content = buffer.getvalue()
    return PackageZip(hashlib.sha256(content).hexdigest()[:16], content)


# the first program on a host ---------------------------------------------------------------------

# It unpacks the package once per version and then becomes the agent. Python reads its source from standard input, and
# it must not read further than that, because the rest is for the agent. Files of another user are not run.

#: The minimum Python version of the worker.
MIN_PYTHON = (3, 11)
#: The first statements, in syntax that every Python accepts, so that an old Python can report its version.
_HEADER = r"""
import sys
if sys.version_info < @OLDEST@:
    sys.stderr.write("distdl: old python: %d.%d\n" % sys.version_info[:2])
    sys.exit(3)
exec(@PROGRAM@)
"""
#: The rest of the program; it is appended to the source of ``permissions``.
_PROGRAM = r"""
import io, shutil, sys, tempfile, zipfile

BASE, DIGEST, SIZE, REQUEST, ARGUMENTS = @VALUES@

def read(count):
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            sys.exit(4)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)

def unpack(base):
    lib = make_private(make_folder(base) / "lib")
    target = lib / DIGEST
    if not os.path.lexists(target):
        os.write(1, REQUEST.encode())
        content = read(SIZE)
        new = Path(tempfile.mkdtemp(prefix=DIGEST + "-", dir=lib))
        zipfile.ZipFile(io.BytesIO(content)).extractall(new)
        try:
            new.rename(target)
        except OSError:
            shutil.rmtree(new, ignore_errors=True)
            if not target.is_dir():
                raise
    if reason := "is a link" if target.is_symlink() else find_refusal(target.lstat()):
        raise PermissionError(f"{target} {reason}, so nothing in it is used")
    return str(target)

base = Path(os.path.abspath(os.path.expanduser(BASE)))
try:
    package = unpack(base)
except OSError as error:
    reason = f"no folder: {base}: {error.strerror}" if error.strerror else f"not ours: {error}"
    sys.stderr.write(f"distdl: {reason}\n")
    sys.exit(5)
environment = {n: v for n, v in os.environ.items() if not n.startswith("SSH_")}
environment["PYTHONPATH"] = os.pathsep.join(p for p in (package, environment.get("PYTHONPATH")) if p)
try:
    os.chdir(os.path.expanduser("~"))
except OSError:
    os.chdir("/")
os.execve(sys.executable, [sys.executable, "-P", "-m", "distdl_jupyter.node"] + ARGUMENTS, environment)
"""


def build_first_input(python: str, base: str, arguments: Sequence[str]) -> bytes:
    """Return the input of the first program on a host: the path of Python and the program's source, in two lines.

    ``python`` and ``base`` are paths on the host (``~/`` is its home folder). ``arguments`` are passed to the agent.
    A host that lacks this version of the package sends ``build_request_marker()`` and then reads the zip.
    """
    if "\n" in python:
        raise ValueError("The path of Python must not contain a line break.")
    package, request = build_package(), build_request_marker().decode()
    values = json.dumps([base, package.digest, len(package.content), request, list(arguments)])
    program = (_ROOT / "permissions.py").read_text(encoding="utf-8") + _PROGRAM.replace("@VALUES@", values)
    program = _HEADER.replace("@OLDEST@", repr(MIN_PYTHON)).replace("@PROGRAM@", ascii(program))
    return f"{python}\n{program.encode().hex()}\n".encode()


def build_request_marker() -> bytes:
    """Return the line with which a host requests this version of the package. No login shell prints such a line."""
    return f"\n\x1edistdl-wants {build_package().digest}\n".encode()
