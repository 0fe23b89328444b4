"""The network of an emulated node, into which a process of a rehearsal moves before it opens any socket.

``DISTDL_NETWORK`` describes it: ``/proc/PID/fd/N:/proc/PID/fd/M:HOST:FILE``. The descriptors are a user namespace (""
for none) and a network namespace that ``clusters.rehearsal`` holds. The process is called HOST then, and sees FILE as
``/etc/hosts``: Gloo looks its own address up under that name in Horovod's process sets (gloo_context.cc, release
0.28.1), whatever interface it was given. Whoever is not root enters the user namespace, which allows the rest, and
takes his own user and group again in one below it. See namespaces(7), setns(2), user_namespaces(7).
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import MutableMapping
from pathlib import Path

VARIABLE = "DISTDL_NETWORK"
NEWNS, NEWUTS, NEWUSER, NEWNET = 0x20000, 0x4000000, 0x10000000, 0x40000000  # include/uapi/linux/sched.h
_BIND, _PRIVATE_BELOW = 0x1000, 0x4000 | 0x40000  # MS_BIND; MS_REC | MS_PRIVATE (include/uapi/linux/mount.h)


def enter(environment: MutableMapping[str, str]) -> None:
    """Move this process, which must have one thread, into the network that is described, if any. Raises OSError."""
    described = environment.pop(VARIABLE, "")
    if not described:
        return
    user, network, host, hosts = described.split(":", 3)
    own = os.getuid(), os.getgid()
    opened = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (user, network) if path]
    try:
        if user:
            setns(opened[0], NEWUSER)
        setns(opened[-1], NEWNET)
    finally:
        for fd in opened:
            os.close(fd)
    unshare(NEWNS | NEWUTS)
    socket.sethostname(host)
    _mount("none", "/", _PRIVATE_BELOW)
    _mount(hosts, "/etc/hosts", _BIND)
    if user:
        unshare(NEWUSER)
        be(*own)


def _mount(source: str, target: str, flags: int) -> None:
    _checked(ctypes.CDLL(None, use_errno=True).mount(source.encode(), target.encode(), None, flags, None))


def be(user: int, group: int, outside: tuple[int, int] = (0, 0)) -> None:
    """Map a user and a group of this new user namespace to those ``outside`` of it."""
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny", encoding="ascii")  # the kernel's condition for mapping a group
    (own / "uid_map").write_text(f"{user} {outside[0]} 1", encoding="ascii")
    (own / "gid_map").write_text(f"{group} {outside[1]} 1", encoding="ascii")


def setns(fd: int, kind: int) -> None:
    """Enter a namespace. Raises OSError."""
    _checked(ctypes.CDLL(None, use_errno=True).setns(fd, kind))


def unshare(kinds: int) -> None:
    """Enter new namespaces of these kinds. Raises OSError."""
    _checked(ctypes.CDLL(None, use_errno=True).unshare(kinds))


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
