"""How much memory a host gives is read from its control groups."""

import sys
from pathlib import Path

import pytest

from distdl_jupyter.node import devices

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the files are Linux's")


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Return ``groups(line, files)``: what the kernel says of control groups, written by hand."""
    monkeypatch.setattr(devices, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(devices, "_GROUPS", tmp_path / "groups")

    def write(line, files):
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "self" / "cgroup").write_text(line)
        (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
        for name, content in files.items():
            path = Path(tmp_path / "groups" / name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return write


def test_the_narrowest_control_group_counts_whatever_its_version(groups):
    groups(
        "0::/a/b\n",
        {"a/memory.max": "max\n", "a/memory.current": "2500000\n",
         "a/b/memory.max": "3000000\n", "a/b/memory.current": "2500000\n",
         "a/b/memory.stat": "anon 1\ninactive_file 400000\n"},
    )  # fmt: skip
    assert devices.read_free_memory() == 900_000


def test_the_first_version_of_control_groups_is_read_too(groups):
    groups(
        "4:cpu,memory:/y\n",
        {"memory/y/memory.limit_in_bytes": "9223372036854771712",
         "memory/memory.limit_in_bytes": "5000000", "memory/memory.usage_in_bytes": "1000000"},
    )  # fmt: skip
    assert devices.read_free_memory() == 4_000_000


def test_without_control_groups_the_machine_counts(groups):
    groups("", {})
    assert devices.read_free_memory() == 8000 * 1024


def test_what_was_killed_before_is_no_evidence():
    before = devices.count_oom_kills()
    assert "The kernel" in before
    found = devices.describe_oom_kills(before)
    assert not found or "are free" in found
    assert devices.describe_oom_kills({name: count - 2 for name, count in before.items()}).endswith(
        "reports 2 processes killed for lack of memory since the start."
    )
