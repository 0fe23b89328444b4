"""Whether the kernel killed for lack of memory is read from its counters."""

import os
import sys
import uuid
from pathlib import Path

import pytest

from distdl_jupyter.node import headroom
from tests.node.driver import Driven

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the counters are Linux's")
LIMIT = 150_000_000


@pytest.fixture
def group():
    """A control group of its own with little memory, of version 1 or 2; needs root."""
    roots = [(Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max")]
    for root, limit in roots:
        path = root / f"distdl-test-{uuid.uuid4().hex[:8]}"
        try:
            path.mkdir()
            (path / limit).write_text(str(LIMIT))
        except OSError:
            continue
        yield path
        for pid in (path / "cgroup.procs").read_text().split():
            os.kill(int(pid), 9)
        path.rmdir()
        return
    pytest.skip("it takes root and a control group for memory that may have children")


def test_a_rank_that_takes_all_memory_is_told_with_the_evidence(group, tmp_path):
    joining = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    agent = Driven(shell=("sh", "-c", joining, "sh")).beat()
    try:
        agent.prepare(tmp_path)
        eater = "import time; print('up', flush=True); x = bytearray(400_000_000); time.sleep(600)"
        agent.start(agent.python(eater), agent.python("import time; time.sleep(600)", process=1, out=3, err=4))
        told = agent.exit(0)
        assert told["signal"] == "KILL"
        assert told["evidence"] == "The control group reports 1 process killed for lack of memory since the start."
        assert 1 not in agent.exits()
        agent.ask("end", keep=False)
    finally:
        agent.close()


def test_what_was_killed_before_is_no_evidence():
    before = headroom.counters()
    assert "The kernel" in before
    found = headroom.evidence(before)
    assert not found or "are free" in found
    assert headroom.evidence({name: count - 2 for name, count in before.items()}).endswith(
        "reports 2 processes killed for lack of memory since the start."
    )
