"""What every cluster must do, done by this machine's cluster when it forks its ranks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from distdl_jupyter.clusters.environment import HASH_SEED
from distdl_jupyter.warm import start as warm_start

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


def test_the_contract_of_a_cluster_holds_for_forked_ranks(tmp_path):
    given = ["-q", "-p", "no:cacheprovider", "--timeout=300", f"--basetemp={tmp_path / 'inner'}"]
    tests = ["tests/clusters/test_local.py::TestLocal", warm_start.FILLER_ARGUMENT]
    command = [sys.executable, "-u", "-m", "tests.warm.forked", *given, *tests]
    environment = {**os.environ, **HASH_SEED, "DISTDL_TEST_START": "cold", **warm_start.FILLER_VARIABLE}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
    assert int(re.search(r"(\d+) programs were forked", ran.stdout)[1]) > 10
