"""Facts about this host before a job starts: Python and packages, devices, network interfaces, disk space and load.

Each part is gathered separately: failed parts are named in ``problems``, and the others are returned. Modules are
located without being imported.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from distdl_jupyter.node import devices, processes

_PROC = Path("/proc")


def gather(modules: Sequence[str] = (), programs: Sequence[str] = (), packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return the facts about this host as plain data. Never raises.

    ``modules`` are import names to look for, ``programs`` bare names (next to the interpreter, then on the PATH) or
    absolute paths; for ``mpirun`` the version is included. ``packages`` are distributions; their versions, and those of
    ``modules``, are returned if installed. ``time`` and ``until`` are this host's clock before and after everything
    else.
    """
    start_time = time.time()
    problems: dict[str, str] = {}
    mpirun = find_program("mpirun") if "mpirun" in programs else ""
    with ThreadPoolExecutor(2) as pool:  # both run programs, each with a timeout
        gpus = pool.submit(_run_probe, "gpus", lambda: [gpu._asdict() for gpu in devices.list_visible()], problems)
        version = pool.submit(_run_probe, "mpirun", lambda: _read_mpirun_version(mpirun), problems)
        probes: dict[str, Callable[[], Any]] = {
            "host": socket.gethostname,
            "python": lambda: {"version": ".".join(map(str, sys.version_info[:3])), "executable": sys.executable},
            "packages": lambda: _find_package_versions(packages, modules),
            "modules": lambda: {name: _is_importable(name) for name in modules},
            "programs": lambda: {name: find_program(name) for name in programs},
            "driver": devices.read_driver_version,
            "infiniband": devices.list_infiniband,
            "cores": devices.cores,
            "load": lambda: os.getloadavg()[0],
            "memory": lambda: {name: devices.read_meminfo(f"Mem{name.title()}") for name in ("total", "available")},
            "disk": _measure_disk_space,
            "interfaces": list_interfaces,
            "ranks": lambda: len(find_rank_marks()),
        }
        info = {name: _run_probe(name, probe, problems) for name, probe in probes.items()}
        info |= {"gpus": gpus.result(), "mpirun": version.result()}
    return {"time": start_time, **info, "problems": problems, "until": time.time()}


def _run_probe(name: str, probe: Callable[[], Any], problems: dict[str, str]) -> Any:
    try:
        return probe()
    except Exception as error:  # noqa: BLE001 - one failed probe must not hide the other facts
        problems[name] = f"{type(error).__name__}: {error}"
        return None


# Python --------------------------------------------------------------------------------------


def _find_package_versions(packages: Iterable[str], modules: Iterable[str]) -> dict[str, str]:
    """Return the installed versions of ``packages`` and of the distributions that contain ``modules``."""
    distributions: Mapping[str, Sequence[str]] | None = None
    versions = {}
    for name in dict.fromkeys((*packages, *(name.partition(".")[0] for name in modules))):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if _is_importable(name):  # from a distribution of another name, such as PyYAML for yaml
                distributions = distributions or metadata.packages_distributions()
                with contextlib.suppress(LookupError, metadata.PackageNotFoundError):
                    versions[name] = metadata.version(distributions[name][0])
    return versions


def _is_importable(module: str) -> bool:
    """Return whether a module could be imported, without importing it or its parent."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    return spec is not None and spec.origin is not None  # a bare folder of that name has no origin


def find_program(name: str) -> str:
    """Return the path of a program next to the interpreter or on the PATH, or "" if there is none.

    A name with a slash is a path; it is returned if it exists.
    """
    if "/" in name:
        return name if Path(name).exists() else ""
    folders = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    return shutil.which(name, path=os.pathsep.join(folders)) or ""


def _read_mpirun_version(program: str) -> str:
    """Return the version of Open MPI, or "" if mpirun is missing or belongs to another MPI."""
    if not program:
        return ""
    result = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=8, check=False, stdin=subprocess.DEVNULL
    )
    match = re.search(r"Open MPI\)?\s*v?(\d+\.\d+\.\d+)", result.stdout)
    return match[1] if match else ""


# The machine ---------------------------------------------------------------------------------


def _measure_disk_space() -> dict[str, dict[str, Any]]:
    """Return the bytes available to this user in the folders of jobs (``jobs``) and temporary files (``temp``)."""
    # An agent's copy of this package is in BASE/lib/DIGEST.
    package_root = Path(__file__).resolve().parents[3]
    base = package_root.parent if package_root.name == "lib" else Path.home()
    paths = {"jobs": str(base), "temp": tempfile.gettempdir()}
    return {name: {"path": path, "free": shutil.disk_usage(path).free} for name, path in paths.items()}


#: Variables that contain the rank of a process: of this package, and of Open MPI if its launcher started the rank.
_RANK_VARIABLES = (b"DISTDL_RANK", b"OMPI_COMM_WORLD_RANK")


def find_rank_marks() -> set[tuple[bytes, bytes]]:
    """Return (job, rank) of each rank that runs here; children of a rank inherit its mark."""
    namespace, marks = _read_uts_namespace("self"), set()
    for entry in _PROC.glob("[0-9]*"):
        variables = processes.read_environment(int(entry.name))
        job = variables.get(processes.MARK.encode())
        rank = next(filter(None, map(variables.get, _RANK_VARIABLES)), None)
        if job and rank and _read_uts_namespace(entry.name) == namespace:
            marks.add((job, rank))
    return marks


def _read_uts_namespace(pid: str) -> str:
    """Return the UTS namespace of a process, because a container counts as another host."""
    try:
        return str((_PROC / pid / "ns" / "uts").readlink())
    except OSError:
        return ""


# network interfaces, from the kernel (netdevice(7)); Linux only -------------------------------------


_SIOCGIFCONF, _SIOCGIFFLAGS, _SIOCGIFNETMASK = 0x8912, 0x8913, 0x891B
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40
#: Bytes of a ``struct ifreq`` on 64-bit Linux: a name of 16 and a union whose largest member has 24.
_ENTRY_BYTES = 40
_NET = Path("/sys/class/net")
#: Bridges and tunnels of Docker, libvirt, LXD, Podman and Kubernetes, which do not lead to other hosts.
_LOCAL_NAMES = ("docker", "br-", "virbr", "lxcbr", "lxdbr", "podman", "cni", "veth", "cali", "flannel", "vmnet")


def list_interfaces() -> list[dict[str, Any]]:
    """Return one dict for each IPv4 address, including secondary ones, in the kernel's order.

    ``name``, ``address``, ``prefix`` (bits), ``up`` (enabled, with a carrier), ``loopback``, ``speed`` (Mbit/s, 0:
    unknown), and ``virtual``: a bridge or container interface, which other machines cannot reach.
    """
    if sys.platform != "linux":
        return []
    buffer = array.array("B", bytes(_ENTRY_BYTES * 512))
    pointer, size = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        length = struct.unpack("iP", fcntl.ioctl(sock, _SIOCGIFCONF, struct.pack("iP", size, pointer)))[0]
        content = buffer.tobytes()[:length]
        entries = [content[offset : offset + _ENTRY_BYTES] for offset in range(0, length, _ENTRY_BYTES)]
        return [_describe_interface(sock, entry) for entry in entries]


def _describe_interface(sock: socket.socket, entry: bytes) -> dict[str, Any]:
    label, address = entry[:16].split(b"\0", 1)[0], entry[20:24]

    def query(operation: int) -> bytes:
        # Without the address, the kernel uses the first address of the interface.
        request = label.ljust(16, b"\0") + struct.pack("HH", socket.AF_INET, 0) + address
        return fcntl.ioctl(sock, operation, request.ljust(_ENTRY_BYTES, b"\0"))

    name = label.decode(errors="replace").split(":", 1)[0]  # eth0:1 is an old label of eth0
    flags, speed = struct.unpack_from("H", query(_SIOCGIFFLAGS), 16)[0], 0
    with contextlib.suppress(OSError, ValueError):  # many virtual devices report no speed
        speed = max(0, int((_NET / name / "speed").read_text()))
    return {
        "name": name,
        "address": socket.inet_ntoa(address),
        "prefix": int.from_bytes(query(_SIOCGIFNETMASK)[20:24], "big").bit_count(),
        "up": flags & (_UP | _RUNNING) == _UP | _RUNNING,
        "loopback": bool(flags & _LOOPBACK),
        "speed": speed,
        "virtual": name.startswith(_LOCAL_NAMES),
    }
