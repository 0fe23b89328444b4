"""Real disks that are small or read-only: a memory file system in the place of the data directory."""

import errno
import os
import subprocess
from pathlib import Path

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


def mount_image(place, image):
    """Mount a file system there that becomes read-only when it meets an error, as those of real machines do."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["truncate", "--size=32M", str(image)], check=True)
    made = subprocess.run(["mkfs.ext4", "-q", str(image)], check=False, capture_output=True)
    command = ["mount", "-o", "loop,errors=remount-ro", str(image), str(place)]
    if made.returncode or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root of a real machine may mount an image with ext4")
    place.chmod(0o700)


def break_down(place):
    """Let the file system meet an error (https://docs.kernel.org/admin-guide/ext4.html): it is read-only then."""
    found = subprocess.run(["findmnt", "-n", "-o", "SOURCE", str(place)], check=True, capture_output=True, text=True)
    Path(f"/sys/fs/ext4/{Path(found.stdout.strip()).name}/trigger_fs_error").write_text("1")
    with pytest.raises(OSError, match="Read-only file system"):
        (place / "nobody-can-write").write_text("")
