"""``distdl`` as a terminal runs it: real processes, real jobs."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distdl_jupyter import jobs
from distdl_jupyter.core.state import State
from tests.conftest import wait_for

DISTDL = Path(sys.prefix) / "bin" / "distdl"
SCRIPT = """
import os, sys, time
from distdl_jupyter import log
for step in range(3):
    log(step=step, loss=1 / (step + 1))
print("arguments", *sys.argv[1:])
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ.get("MODE", ""))
"""

pytestmark = pytest.mark.timeout(300)


def distdl(*words, code=0, **options):
    done = subprocess.run([str(DISTDL), *map(str, words)], capture_output=True, text=True, timeout=200, **options)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_is_submitted_followed_listed_read_and_removed(script):
    done = distdl("submit", "-p", 2, "-f", "--env", "MODE=fast", script, "--epochs", "3", "-f")
    assert "argument" not in done.stderr
    assert "[0] arguments --epochs 3 -f" in done.stdout
    assert "[1] rank 1 of 2 fast" in done.stdout
    assert "completed" in done.stderr
    (job,) = jobs()
    listing = distdl("ls").stdout
    assert job.id in listing
    assert "completed" in listing
    assert "1 × 2 = 2 processes" in listing
    (view,) = json.loads(distdl("ls", "--json").stdout)
    assert view["state"] == "completed"
    assert view["metrics"][0]["name"] == "loss"
    one = distdl("logs", job.id.rsplit("-", 1)[1], "--rank", 1).stdout
    assert one.splitlines() == ["arguments --epochs 3 -f", "rank 1 of 2 fast"]
    assert "rank 0 on" in distdl("show", job.id).stdout
    assert "removed" in distdl("rm", job.id).stdout
    assert jobs() == []
    assert "No jobs yet" in distdl("ls").stdout


def test_options_behind_the_script_are_said_to_be_its_own(tmp_path):
    path = tmp_path / "quick.py"
    path.write_text("import sys\nprint(sys.argv[1:])\n")
    done = distdl("submit", "-f", path, "-p", "2")
    assert f"-p behind {path} is its own argument: options of distdl submit stand before the script." in done.stderr
    assert "['-p', '2']" in done.stdout


def test_a_failing_script_is_a_failing_command(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("raise ValueError('no good')\n")
    done = distdl("submit", "-f", path, code=1)
    assert "ValueError: no good" in done.stdout
    assert "failed" in done.stderr


def test_follow_prints_while_the_job_runs_and_stop_ends_it(tmp_path):
    path = tmp_path / "slow.py"
    path.write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    id_ = distdl("submit", path).stdout.strip()
    follower = subprocess.Popen([str(DISTDL), "logs", "-f", id_], stdout=subprocess.PIPE, text=True)
    lines = iter(follower.stdout.readline, "")
    assert any("begun" in line for line in lines)
    began = time.monotonic()
    assert "canceled" in distdl("stop", id_).stdout
    follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert time.monotonic() - began < 60
    assert "nothing to cancel" in distdl("cancel", id_).stdout
    wait_for(lambda: jobs()[0].state is State.CANCELED)


def test_options_of_the_job_and_of_the_backend_are_taken(tmp_path):
    path = tmp_path / "short.py"
    path.write_text("print('done')\n")
    distdl("submit", "-f", "-b", "horovod-gloo", "-o", "cycle_time_ms=0.5", "--hang-timeout-seconds", 60, path)
    spec = jobs()[0].spec
    assert spec.backend_options == {"cycle_time_ms": 0.5}
    assert spec.hang_timeout_seconds == 60


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["logs", "nope"], "No job 'nope' is here. 'distdl ls' lists the jobs."),
        (["submit", "missing.py"], "missing.py"),
        (["submit", "-b", "horovdo", "-p", "2", __file__], "Did you mean horovod"),
        (["submit", "-p", "0", __file__], "takes a whole number from 1"),
        (["submit", "-o", "elastic=1", "-b", "horovod-gloo", __file__], "elastic"),
        (["submit", "-o", "colour=red", __file__], "colour"),
        (["rm", "../../etc"], "No job"),
    ],
)
def test_a_bad_request_is_one_sentence_with_a_remedy(words, sentence):
    done = distdl(*words, code=2)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_help_and_version():
    assert "submit" in distdl().stdout
    assert "horovod-gloo" in distdl("submit", "--help").stdout
    assert distdl("--version").stdout.startswith("distdl 0.")


def test_a_closed_pipe_is_no_error(script):
    distdl("submit", "-f", script)
    done = subprocess.run(f"{DISTDL} ls --json | head -1", shell=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "["
    assert "Traceback" not in done.stderr
