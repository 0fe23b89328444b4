"""The environment of ranks: the submitter's variables, and this package for hosts that do not have it.

On another machine, the submitter's PATH, HOME or LD_LIBRARY_PATH is wrong, and unneeded variables should stay private.
So ranks on this machine receive almost all variables, those on other machines only some by name.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from distdl_jupyter.core.plan import Placement, RankSlot
from distdl_jupyter.core.redact import is_secret
from distdl_jupyter.node.data_cache import get_default_base
from distdl_jupyter.worker.hooks import frameworks

#: Prefixes of the variables of training libraries.
_PREFIXES = (
    "NCCL_", "HOROVOD_", "OMP_", "MKL_", "TORCH_", "PYTORCH_", "GLOO_", "UCX_", "FI_", "TF_", "KERAS_", "HF_",
    "TOKENIZERS_", "OMPI_MCA_", "PRTE_MCA_",
)  # fmt: skip
#: Makes all ranks iterate over sets in the same order. A job's environment_variables may set another seed.
HASH_SEED = {"PYTHONHASHSEED": "0"}
_NAMES = frozenset(("LANG", "LC_ALL", "TZ"))
#: Variables for ssh itself: its key agent, a Kerberos ticket, the location of its configuration.
_SSH_NAMES = ("PATH", "HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "KRB5CCNAME", "LANG")
#: Prefixes of the matplotlib backends that a kernel sets.
_NOTEBOOK_BACKENDS = ("module://matplotlib_inline", "module://ipykernel", "module://ipympl")
_ROOT = Path(__file__).parents[1]
_EARLIEST_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest modification time that zip files support
#: Names that every shell and exec accept.
_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def select_for_local_ranks(submitters: Mapping[str, str]) -> dict[str, str]:
    """Return the submitter's environment without the variables that no rank should inherit."""
    own_names = ("DISTDL_HOME", "DISTDL_CACHE", "DISTDL_WARM_DIR")
    environment = {n: value for n, value in submitters.items() if n in own_names or not n.startswith("DISTDL_")}
    if environment.get("MPLBACKEND", "").startswith(_NOTEBOOK_BACKENDS):
        del environment["MPLBACKEND"]  # the notebook's backend does not work in a rank
    # Jobs share one folder, because the cache keys include the versions of torch, CUDA and Triton and the GPU model.
    folder = str(get_default_base() / frameworks.COMPILED_FOLDER)
    environment.setdefault(frameworks.COMPILED_VARIABLE, folder)
    return environment | HASH_SEED


def select_for_remote_ranks(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are valid on another machine, except variables that look like secrets."""
    return {
        name: value
        for name, value in inherited.items()
        if (name in _NAMES or name.startswith(_PREFIXES))
        and not is_secret(name, value)
        and _NAME_PATTERN.fullmatch(name)
    }


def select_for_ssh() -> dict[str, str]:
    """Return the environment of the ssh program; it is minimal so that ``SendEnv`` cannot leak variables."""
    return {name: os.environ[name] for name in _SSH_NAMES if name in os.environ}


def build_rank_variables(placement: Placement, slot: RankSlot) -> dict[str, str]:
    """Return the ``DISTDL_`` variables of a rank, which the worker reads (``worker.identity``)."""
    identity = {
        "DISTDL_RANK": slot.rank,
        "DISTDL_WORLD_SIZE": len(placement.ranks),
        "DISTDL_LOCAL_RANK": slot.local_rank,
        "DISTDL_LOCAL_SIZE": placement.local_sizes[slot.node],
        "DISTDL_NODE_RANK": slot.node,
        "DISTDL_NODE_COUNT": placement.node_count,
        "DISTDL_HOST": slot.host,
    }
    if slot.gpu is not None:
        identity["DISTDL_GPU"] = slot.gpu
    return {name: str(value) for name, value in identity.items()}


class PackageZip(NamedTuple):
    """The zip and its digest of 16 hexadecimal digits."""

    digest: str
    content: bytes


@functools.cache
def build_package() -> PackageZip:
    """Return a zip of this package's sources. Modules with a training function often also import what submits it."""
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
