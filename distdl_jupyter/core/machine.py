"""Information about this machine: installed software, usable GPUs, cache directory and socket paths."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
import stat
import subprocess
import tempfile
from pathlib import Path

from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.node import data_cache, devices
from distdl_jupyter.worker.hooks import frameworks

#: Maximum length of a Unix socket's path on all platforms (macOS: 104 bytes including the final NUL).
_MAX_SOCKET_PATH = 103


def find_version(*names: str) -> str:
    """Return the version of the first of these distributions that is installed, or "" if none is."""
    from importlib import metadata  # imports the whole ``email`` package

    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def get_requirement() -> str:
    """Return the pip requirement of this package: the repository or wheel it was installed from, or its name."""
    import json
    from importlib import metadata

    origin = json.loads(metadata.distribution("distdl-jupyter").read_text("direct_url.json") or "{}")
    if "vcs_info" in origin:
        return f"{origin['vcs_info']['vcs']}+{origin['url']}"
    return str(origin.get("url", "distdl-jupyter"))


def has_java() -> bool:
    """Return whether Java is installed where Spark's scripts search it."""
    import shutil  # imports all compression modules

    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java").exists() if home else shutil.which("java") is not None


@functools.cache
def list_gpus() -> tuple[devices.Gpu, ...]:
    """Return the GPUs that ranks may use, limited by CUDA_VISIBLE_DEVICES; () if the driver does not respond."""
    try:
        return tuple(devices.list_visible())
    except (OSError, subprocess.SubprocessError):
        return ()


def list_gpu_numbers() -> list[int]:
    """Return the numbers of the GPUs that ranks may use."""
    return [gpu.number for gpu in list_gpus()]


def get_cache_directory() -> Path:
    """Return the package's cache directory, which need not exist yet: ``DISTDL_CACHE``, or the platform's default."""
    return data_cache.get_default_base()


def get_compiler_cache() -> tuple[str, str]:
    """Return the environment variable for torch's compiler cache, and the cache folder that jobs share.

    One folder is enough, because the cache keys include the versions of torch, CUDA and Triton and the GPU model.
    """
    return frameworks.COMPILED_VARIABLE, str(get_cache_directory() / frameworks.COMPILED_FOLDER)


def get_socket_path(name: str, folder: Path | None = None) -> Path:
    """Return the path of the socket ``name``; it contains the host name, because home directories may be shared.

    The socket is in ``folder`` (default: Jupyter's runtime directory), or in a folder per user in the temporary
    directory if that path is too long for a socket. Nothing is created; see ``make_private_folder``.
    """
    if folder is None:
        from jupyter_core.paths import jupyter_runtime_dir

        folder = Path(jupyter_runtime_dir())
    host, digest = (hashlib.sha256(text).hexdigest() for text in (socket.gethostname().encode(), os.fsencode(folder)))
    file = f"{name}-{host[:8]}.sock"
    path = folder / "distdl" / file
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        return path
    return Path(tempfile.gettempdir()) / f"distdl-{os.getuid()}-{digest[:10]}" / file


def make_private_folder(folder: Path) -> Path:
    """Create a folder that only its owner may enter. Raises DistDLError if another user owns it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        hint = "Set JUPYTER_RUNTIME_DIR to a folder that belongs to you."
        raise DistDLError(f"{folder} belongs to another user.", code="socket-folder-of-another-user", hint=hint)
    folder.chmod(0o700)
    return folder
