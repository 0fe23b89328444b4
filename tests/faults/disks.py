"""Real disks that are small or read-only: a memory file system in the place of the data directory."""

import errno
import os
import subprocess

import pytest


def mount(place, *options):
    """Mount a memory file system there, or skip the test where nobody may."""
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"only root of a real machine may mount: {done.stderr.strip()}")


def unmount(place):
    subprocess.run(["umount", "-l", str(place)], check=False)


def fill(place):
    """Leave no byte free: other programs' files grow until nothing fits any more."""
    with (place / "somebody-elses-file").open("ab", buffering=0) as file:
        for size in (65_536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def free(place):
    (place / "somebody-elses-file").unlink()


def is_full(place):
    return os.statvfs(place).f_bavail == 0
