"""Which TCP ports processes listen on, read from /proc."""

import os
import socket
import struct
from pathlib import Path

LISTENS = "0A"


def of_processes(pids):
    """Return {(address, port)} on which these processes, or any of them, listen."""
    inodes = {inode for pid in pids for inode in _sockets(pid)}
    return {where for where, inode in _all() if inode in inodes}


def program(pid):
    """Return the name of a process's program, "" when it has ended."""
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:
        return ""


def _sockets(pid):
    found = []
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                found.append(target[8:-1])
    except OSError:
        pass
    return found


def _all():
    for file, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS:
                address, port = fields[1].split(":")
                yield (_address(address, family), int(port, 16)), fields[9]


def _address(text, family):
    """Words of 32 bits, each in the machine's own order (proc_pid_net(5))."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
