"""The first program on a host: it unpacks the package once per version and becomes the agent.

Its text travels on the standard input of a Python that may be old, so it is written to run on any, and it must not
read a byte more than its own: what follows is the agent's. Versions lie beside each other, because
jobs of several submitters may run there at once; one that nobody used for three months goes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from distdl_jupyter.clusters.ssh import command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distdl_jupyter.clusters.package import Package

#: The oldest Python that the worker runs on.
OLDEST = (3, 11)

_PROGRAM = r"""
import sys
OLDEST, BASE, DIGEST, SIZE, WANTED, ARGUMENTS = @VALUES@
if sys.version_info < tuple(OLDEST):
    sys.stderr.write("distdl: old python: %d.%d\n" % sys.version_info[:2])
    sys.exit(3)
import io, os, shutil, tempfile, time, zipfile

def read(count):
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            sys.exit(4)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)

def forget_old(folder):
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            if time.time() - os.stat(path).st_mtime > 90 * 86400:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass

def unpacked(folder):
    lib = os.path.join(folder, "lib")
    target = os.path.join(lib, DIGEST)
    os.makedirs(lib, mode=0o700, exist_ok=True)
    if not os.path.isdir(target):
        os.write(1, WANTED.encode())
        content = read(SIZE)
        new = tempfile.mkdtemp(dir=lib)
        zipfile.ZipFile(io.BytesIO(content)).extractall(new)
        try:
            os.rename(new, target)
        except OSError:
            shutil.rmtree(new, ignore_errors=True)
            if not os.path.isdir(target):
                raise
    os.utime(target)
    forget_old(lib)
    return target

base = os.path.abspath(os.path.expanduser(BASE))
try:
    own = unpacked(base)
except OSError as error:
    sys.stderr.write("distdl: no folder: %s: %s\n" % (base, error.strerror or error))
    sys.exit(5)
environment = dict((n, v) for n, v in os.environ.items() if not n.startswith("SSH_"))
environment["PYTHONPATH"] = os.pathsep.join(p for p in (own, environment.get("PYTHONPATH")) if p)
try:
    os.chdir(os.path.expanduser("~"))
except OSError:
    os.chdir("/")
os.execve(sys.executable, [sys.executable, "-P", "-m", "distdl_jupyter.host"] + ARGUMENTS, environment)
"""


def first_input(python: str, base: str, package: Package, arguments: Sequence[str]) -> bytes:
    """Return all that the ssh process reads before the agent's first frame, but the package itself.

    A host that lacks this version of the package says ``wanted`` and then reads its content.

    ``python`` and ``base`` are paths on the host (``~/`` is the home there), ``arguments`` those of the agent.
    """
    said = wanted(package).decode()
    values = json.dumps([list(OLDEST), base, package.digest, len(package.content), said, list(arguments)])
    return command.first_lines(python, _PROGRAM.replace("@VALUES@", values))


def wanted(package: Package) -> bytes:
    """Return what a host says that lacks this version of the package; no login shell says it by chance."""
    return f"\n\x1edistdl-wants {package.digest}\n".encode()
