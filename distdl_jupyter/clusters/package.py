"""This package's own Python sources as one zip, for other machines, where the worker and the agent run.

The rest travels because training code may name it: a module with a training function often also holds the line that
submits it. The same sources give the same bytes, so a host unpacks each version once, in a folder named by its digest.
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
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip can tell


class Package(NamedTuple):
    """The zip and the name of its content: 16 hexadecimal digits."""

    digest: str
    content: bytes


@functools.cache
def built() -> Package:
    """Return the zip of the sources that this process runs with."""
    content = pack(_ROOT)
    return Package(hashlib.sha256(content).hexdigest()[:16], content)


def pack(root: Path) -> bytes:
    """Return a zip of the ``.py`` files below ``root``, under its name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(root.rglob("*.py")):
            name = f"{root.name}/{path.relative_to(root).as_posix()}"
            entry = zipfile.ZipInfo(name, _EARLIEST)
            entry.external_attr = 0o100600 << 16
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


# the first program on a host ---------------------------------------------------------------------
# It unpacks the package once per version and becomes the agent. Its text travels on the standard input of a Python that
# may be old, so it is written to run on any, and it must not read a byte more than its own: what follows is the
# agent's. Versions lie beside each other, because jobs of several submitters may run there at once; one that was not
# used for three months is removed. What another user could have put there is neither run nor removed.

#: The oldest Python that the worker runs on.
OLDEST = (3, 11)

_PROGRAM = r"""
import sys
OLDEST, BASE, DIGEST, SIZE, WANTED, ARGUMENTS = @VALUES@
if sys.version_info < tuple(OLDEST):
    sys.stderr.write("distdl: old python: %d.%d\n" % sys.version_info[:2])
    sys.exit(3)
import io, os, re, shutil, stat, tempfile, time, zipfile

def read(count):
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            sys.exit(4)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)

class NotOurs(Exception):
    pass

def others_group(number):
    # A group of the user's own name without other members is nobody else.
    import grp, pwd
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return True
    own = user.pw_gid == number and group.gr_name == user.pw_name and os.geteuid() != 0
    return not own or bool(set(group.gr_mem) - set([user.pw_name]))

def is_open(seen):
    if seen.st_mode & stat.S_ISVTX:
        return False
    return bool(seen.st_mode & 2 or (seen.st_mode & 16 and others_group(seen.st_gid)))

def check(folder, seen):
    if not stat.S_ISDIR(seen.st_mode):
        raise NotOurs(folder, "is not a directory but a link or a file")
    if seen.st_uid not in (os.geteuid(), 0):
        raise NotOurs(folder, "belongs to the user with ID %d, not to you" % seen.st_uid)
    if is_open(seen):
        raise NotOurs(folder, "is writable by other users, who could put code there")

def made(folder):
    # A folder of this package's own; others' right to write there is taken back.
    if not os.path.lexists(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    seen = os.lstat(folder)
    if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and is_open(seen):
        os.chmod(folder, stat.S_IMODE(seen.st_mode) & ~18)
        seen = os.lstat(folder)
    check(folder, seen)

def is_version(folder, name):
    # Whole or broken off, a version has the name of its content and holds the package and nothing else.
    path = os.path.join(folder, name)
    seen = os.lstat(path)
    return (re.match("[0-9a-f]{16}(-[a-z0-9_]{8})?$", name) and stat.S_ISDIR(seen.st_mode)
            and seen.st_uid == os.geteuid() and time.time() - seen.st_mtime > 90 * 86400
            and os.listdir(path) == ["distdl_jupyter"])

def forget_old(folder):
    for name in os.listdir(folder):
        try:
            if is_version(folder, name):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        except OSError:
            pass

def unpacked(folder):
    lib = os.path.join(folder, "lib")
    target = os.path.join(lib, DIGEST)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.lstat(folder).st_uid not in (os.geteuid(), os.stat(folder).st_uid, 0):
        raise NotOurs(folder, "is a link that belongs to another user")
    check(folder, os.stat(folder))
    made(lib)
    if not os.path.lexists(target):
        os.write(1, WANTED.encode())
        content = read(SIZE)
        new = tempfile.mkdtemp(prefix=DIGEST + "-", dir=lib)
        zipfile.ZipFile(io.BytesIO(content)).extractall(new)
        try:
            os.rename(new, target)
        except OSError:
            shutil.rmtree(new, ignore_errors=True)
            if not os.path.isdir(target):
                raise
    check(target, os.lstat(target))
    os.utime(target)
    forget_old(lib)
    return target

base = os.path.abspath(os.path.expanduser(BASE))
try:
    own = unpacked(base)
except NotOurs as error:
    sys.stderr.write("distdl: not ours: %s: %s\n" % error.args)
    sys.exit(5)
except OSError as error:
    sys.stderr.write("distdl: no folder: %s: %s\n" % (base, error.strerror or error))
    sys.exit(5)
environment = dict((n, v) for n, v in os.environ.items() if not n.startswith("SSH_"))
environment["PYTHONPATH"] = os.pathsep.join(p for p in (own, environment.get("PYTHONPATH")) if p)
try:
    os.chdir(os.path.expanduser("~"))
except OSError:
    os.chdir("/")
os.execve(sys.executable, [sys.executable, "-P", "-m", "distdl_jupyter.node"] + ARGUMENTS, environment)
"""


def first_input(python: str, base: str, arguments: Sequence[str]) -> bytes:
    """Return all that the ssh process reads before the agent's first frame, but the package itself.

    A host that lacks this version of the package sends ``request_marker()`` and then reads the content.

    ``python`` and ``base`` are paths on the host (``~/`` is the home there), ``arguments`` those of the agent.
    """
    package, request = built(), request_marker().decode()
    values = json.dumps([list(OLDEST), base, package.digest, len(package.content), request, list(arguments)])
    return first_lines(python, _PROGRAM.replace("@VALUES@", values))


def first_lines(python: str, program: str) -> bytes:
    """Return what ``argv`` reads first: the path of Python there and the source of the first program it runs.

    Raises ValueError when the path holds a line break.
    """
    if "\n" in python:
        raise ValueError("The path of Python must not contain a line break.")
    return f"{python}\n{program.encode().hex()}\n".encode()


def request_marker() -> bytes:
    """Return the line by which a host requests this version of the package; no login shell prints it."""
    return f"\n\x1edistdl-wants {built().digest}\n".encode()
