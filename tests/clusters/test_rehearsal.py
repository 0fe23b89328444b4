"""The network of a rehearsal itself, without a job: what its links give, and to whom."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import distdl_jupyter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a rehearsal takes Linux")
ROOT = Path(distdl_jupyter.__file__).parents[1]
#: A user who is not root and owns nothing.
NOBODY = 65534
RATE, BYTES, BURST = 20e6, 500_000, 64 * 1024


def said(rate, latency, *, python=sys.executable, root=ROOT, as_user=()):
    command = [*as_user, python, "-m", "tests.clusters.rehearsed", str(rate), str(latency), str(BYTES)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def holds(found, user, group):
    assert found["received"] == BYTES
    assert found["seconds"] > 8 * (BYTES - 2 * BURST) / RATE, "it was faster than its link"
    assert (found["host"], found["interfaces"], found["peer"]) == ("node-0", ["link0", "lo"], "10.203.0.2")
    assert (found["user"], found["group"]) == (user, group)
    assert found["outside"] == os.uname().nodename


def test_nodes_send_each_other_no_more_than_their_links_carry():
    holds(said(RATE, 0), os.getuid(), os.getgid())


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can be another user")
def test_whoever_is_not_root_has_such_networks_too_and_stays_the_same_user():
    as_user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    python = next(filter(None, (_usable(as_user, one) for one in (sys.executable, "/usr/bin/python3"))), None)
    if python is None:
        pytest.skip("that user can run no Python here")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for name in ("distdl_jupyter", "tests"):
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("*.js", "*.po", "*.png"))
        holds(said(RATE, 0, python=python, root=folder, as_user=as_user), NOBODY, NOBODY)


def _usable(as_user, python):
    code = "import subprocess, sys; sys.exit(sys.version_info < (3, 10) or subprocess.call([sys.executable, '-c', '']))"
    usable = subprocess.run([*as_user, python, "-P", "-c", code], capture_output=True, check=False, cwd="/")
    return python if usable.returncode == 0 else None


def test_a_rate_that_this_machine_does_not_reach_is_refused_with_what_it_reaches():
    found = said(1e14, 0)
    assert "This machine's own network reaches only " in found["failed"]
    assert "so 1e+05 Gb/s cannot be rehearsed." in found["failed"]


def test_without_the_rights_it_says_what_they_are():
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can lose its rights")
    found = said(RATE, 0, as_user=without)
    assert found["failed"].startswith("Cannot create network namespaces on this machine: Operation not permitted.")
    assert "user namespaces" in found["hint"]
