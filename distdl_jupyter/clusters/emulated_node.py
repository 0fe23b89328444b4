"""A program that emulates a node: it runs a command under another host name, like ``ssh HOST COMMAND``.

``python -m distdl_jupyter.clusters.emulated_node HOST COMMAND...`` enters a UTS namespace (Linux, uts_namespaces(7)),
so launchers that distinguish nodes by host name, such as Open MPI's daemons, see several nodes. Memory, disk and
network stay shared. Users other than root also need a user namespace (user_namespaces(7)).
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil

_CLONE_NEWUTS, _CLONE_NEWUSER = 0x04000000, 0x10000000  # include/uapi/linux/sched.h


@functools.cache
def get_shell() -> tuple[str, ...]:
    """Return the arguments before ``HOST COMMAND...``; () if this machine cannot emulate nodes for a launcher."""
    if sys.platform != "linux":
        return ()
    states = psutil.net_if_stats()
    has_network = any(  # daemons of Open MPI 5 need an interface besides the loopback to connect
        states[name].isup and entry.family is socket.AF_INET and not entry.address.startswith("127.")
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if name in states
    )
    command = (sys.executable, "-P", "-m", __name__ if __name__ != "__main__" else __spec__.name)
    if not has_network:
        return ()
    trial = [*command, "node-0", "uname -n"]  # kernels, containers and AppArmor may forbid namespaces
    try:
        output = subprocess.check_output(trial, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60.0)
    except (OSError, subprocess.SubprocessError):
        return ()
    return command if output.strip() == b"node-0" else ()


def enter_namespace(host: str) -> None:
    """Set the host name of this process and its descendants. Raises OSError."""
    user, group = os.getuid(), os.getgid()
    try:
        _unshare(_CLONE_NEWUTS)
    except OSError:
        _unshare(_CLONE_NEWUTS | _CLONE_NEWUSER)
        process = Path("/proc/self")
        (process / "setgroups").write_text("deny", encoding="ascii")  # required by the kernel before a group is mapped
        (process / "uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        (process / "gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    socket.sethostname(host)


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main(host: str, *command: str) -> None:
    """Become the shell that runs ``command`` on the emulated node ``host``."""
    try:
        enter_namespace(host)
    except OSError as error:
        # The causes of errors of unshare(2) are the kernel, the container, AppArmor or a limit.
        text = f"Cannot give processes their own host name: {error.strerror}. User namespaces may be missing, "
        text += "forbidden, or limited by the sysctl user.max_user_namespaces. "
        sys.exit(f"{text}Use one node, or a backend without a launcher.")
    os.execv("/bin/sh", ["/bin/sh", "-c", " ".join(command)])  # noqa: S606  runs any command, like ssh


if __name__ == "__main__":
    main(*sys.argv[1:])
