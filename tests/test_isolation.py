"""A run of the tests leaves the Jupyter, IPython and job folders of the user alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.installation import plain_environment

ROOT = Path(__file__).parents[1]
#: Tests that add a cluster in a kernel, share the kernel of a module, and start a server.
TESTS = (
    "tests/magic/test_interrupts.py::test_an_interrupt_of_a_question_to_a_cluster_is_one_sentence[nodes()]",
    "tests/magic/test_kernel.py::test_a_syntax_error_shows_its_place",
    "tests/server/test_clusters.py::test_plugins_tell_their_options_as_json_schema",
)


@pytest.mark.full
def test_kernels_and_servers_of_tests_write_nothing_into_the_home_of_the_user(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'run'}"], cwd=ROOT, capture_output=True, text=True, timeout=280,
        env={**plain_environment(), "HOME": str(home), "DISTDL_TESTS": "all"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    written = [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()]
    assert [path for path in written if not path.startswith(".cache/")] == []
