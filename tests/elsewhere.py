"""Another host that shares the data directory: as its locks look from here, and as it looks at jobs of here."""

import json
import os
import shlex
import subprocess
import sys
import time

import pytest

from tests.faults import disks


def sign_elsewhere(lock, host, age=0.0):
    """Write into a lock's file what a process of another host writes, ``age`` seconds ago."""
    lock.write_text(json.dumps({"host": host, "boot": "6f0c2c0e-0000-4000-8000-000000000000", "pid": 7, "started": 7}))
    os.utime(lock, (time.time() - age, time.time() - age))


class OtherHost:
    """A host of another name and boot that shares the data directory, sees no process of here and none of its locks.

    The directory lies there on an overlay file system, which has its own locks, over the same files.
    """

    def __init__(self, share, name="login2"):
        self._share, self._name = share, name
        self.home = share / "there"
        for folder in ("there", "low", "work"):
            (share / folder).mkdir()
        (share / "boot").write_text("6f0c2c0e-0000-4000-8000-000000000000\n")

    def run(self, *command):
        """Run a command there and return what it printed on both streams, with its exit code in front."""
        parts = [
            f"hostname {self._name}",
            f"mount --bind {self._share}/boot /proc/sys/kernel/random/boot_id",
            f"mount -t overlay overlay -o lowerdir={self._share}/low,upperdir={self._share}/here,"
            f"workdir={self._share}/work {self.home}",
            f"exec env DISTDL_HOME={self.home} {shlex.join(command)}",
        ]
        unshare = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        done = subprocess.run(
            [*unshare, "sh", "-c", " && ".join(parts)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=120,
        )  # fmt: skip
        return f"{done.returncode} {done.stdout}"

    def distdl(self, *commands):
        """Run commands of the command line there, in one process; return what each printed, its exit code in front."""
        return json.loads(self.run(sys.executable, "-c", _COMMANDS, json.dumps(commands)).partition(" ")[2])


_COMMANDS = """
import contextlib, io, json, sys
from distdl_jupyter.cli import main
said = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as page, contextlib.redirect_stderr(page):
        code = main(words)
    said.append(f"{code} {page.getvalue()}")
print(json.dumps(said))
"""


@pytest.fixture
def other_host(tmp_path, monkeypatch):
    """A data directory that is shared with another host, and that host."""
    share = tmp_path / "share"
    disks.mount(share, "size=256m", "mode=700")
    (share / "here").mkdir(mode=0o700)
    monkeypatch.setenv("DISTDL_HOME", str(share / "here"))
    host = OtherHost(share)
    if not (said := host.run("true")).startswith("0 "):
        disks.unmount(share)
        pytest.skip(f"no other host can be made here: {said}")
    yield host
    disks.unmount(share)
