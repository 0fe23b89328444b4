"""``distdl`` as a terminal runs it: real processes, real jobs."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from distdl_jupyter import cli, jobs
from distdl_jupyter.core.errors import JobFailed
from distdl_jupyter.jobs import client
from tests.processes import distdl

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
    assert "Completed" in listing
    assert "1 × 2 = 2 processes" in listing
    (view,) = json.loads(distdl("ls", "--json").stdout)
    assert view["state"] == "completed"
    assert view["metrics"][0]["name"] == "loss"
    one = distdl("logs", job.id.rsplit("-", 1)[1], "--rank", 1).stdout
    assert one.splitlines() == ["arguments --epochs 3 -f", "rank 1 of 2 fast"]
    assert re.search(r"\nRank  .*\n0     ", distdl("show", job.id).stdout)
    assert f"pytest=={pytest.__version__}\n" in distdl("environment", job.id).stdout
    assert "Deleted" in distdl("rm", job.id).stdout
    assert jobs() == []
    assert "No jobs yet" in distdl("ls").stdout


FAILS = """
x = {"image": 1}
x["label"]
"""
MISSES = "import no_such_module\n"
DIVERGES = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1 + dist.get_rank())
for step in range(8):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""
ALONE = """
import torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(25):
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("code", "word"), [(FAILS, "The only key of `x` is"), (MISSES, "no_such_module` is not")])
def test_run_and_show_give_the_hint_that_the_result_has(tmp_path, code, word):
    path = tmp_path / "train.py"
    path.write_text(code)
    done = distdl("run", "-p", 2, path, code=1)
    (job,) = jobs()
    with pytest.raises(JobFailed) as failed:
        job.result()
    assert word in failed.value.hint
    assert failed.value.hint in done.stderr
    assert failed.value.hint in distdl("show", job.id).stdout


@pytest.mark.parametrize(("code", "word"), [(DIVERGES, "different weights"), (ALONE, "not communicating")])
def test_run_ends_with_the_warnings_that_came_while_the_job_ran(tmp_path, code, word):
    path = tmp_path / "train.py"
    path.write_text(code)
    done = distdl("run", "-p", 2, path)
    end = done.stderr.partition(" completed")[2]
    assert "Warning: " in end
    assert word in end
    assert "never initializes" not in end, "what was said before the start is not said again"


def test_options_after_the_script_get_a_note(tmp_path):
    path = tmp_path / "quick.py"
    path.write_text("import sys\nprint(sys.argv[1:])\n")
    done = distdl("submit", "-f", path, "-p", "2")
    assert f"-p after {path} is passed to the script. Put options of distdl submit before the script." in done.stderr
    assert "['-p', '2']" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-m", "pkg.train"], "needs the file of a script, not a module. Run: distdl submit -p 2 pkg/train.py"),
        (["python", "-m", "train"], "needs the file of a script, not a module. Run: distdl submit -p 2 train.py"),
        (["torchrun", "--nproc-per-node", "4", "digits.py"],
         "Do not use torchrun with it. Run: distdl submit -p 2 -b torch digits.py"),
        (["horovodrun", "-np", "4", "python", "a/b.py"], "distdl submit -p 2 -b horovod-gloo a/b.py"),
    ],
)  # fmt: skip
def test_commands_of_other_launchers_get_the_distdl_command(words, says, capsys):
    assert cli.main(["submit", *words]) == 2
    assert says in capsys.readouterr().err
    assert jobs() == []


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["-np", "4"], {"np": 4}),
        (["--nproc_per_node", "2", "--nnodes", "1"], {"nproc_per_node": 2, "num_nodes": None, "nnodes": 1}),
        (["--num-proc", "2"], {"num_proc": 2}),
        (["--backend", "gloo", "--numGpus", "2"], {"backend": "gloo", "numGpus": 2}),
        (["-p", "2", "python3"], {"process_count_per_node": 2}),
    ],
)
def test_option_names_of_other_launchers_are_accepted(words, options, script, monkeypatch, capsys):
    given = {}
    monkeypatch.setattr(client, "launch", lambda draft, **more: given.update(more) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["submit", *words, str(script), "--epochs", "3"])
    assert given == {name: value for name, value in options.items() if value is not None}


@pytest.mark.full
def test_an_interrupt_prints_findings_and_that_the_job_continues(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import time\nfor n in range(600):\n    print(n, flush=True)\n    time.sleep(1)\n")
    # What a script starts in the background would not hear the signal.
    code = "import signal, sys, distdl_jupyter.cli as cli; "
    code += "signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(cli.main())"
    command = [sys.executable, "-c", code, "submit", "-p", "2", "-b", "torch", "-f", path]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    (job,) = jobs()
    assert process.returncode == 130
    assert "Warning: " in said
    assert re.search(rf"is still (queued|running). To stop it, run distdl stop {job.id[-5:]}$", said.rstrip())
    assert "Traceback" not in said
    assert not job.state.ended
    job.cancel(now=True)
    job.wait(60)


def test_options_of_the_job_and_of_the_backend_are_used(tmp_path):
    path = tmp_path / "short.py"
    path.write_text("print('done')\n")
    distdl("submit", "-f", "-b", "horovod-gloo", "-o", "cycle_time_ms=0.5", "--hang-timeout-seconds", 60, path)
    spec = jobs()[0].spec
    assert spec.backend_options == {"cycle_time_ms": 0.5}
    assert spec.hang_timeout_seconds == 60


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["logs", "nope"], "Unknown job 'nope'. List the jobs with 'distdl ls'."),
        (["submit", "missing.py"], "missing.py"),
        (["submit", "-b", "horovdo", "-p", "2", "train.py"], "Did you mean horovod"),
        (["submit", "-p", "0", "train.py"], "must be an integer from 1 to 100,000, not"),
        (["submit", "-o", "colour=red", "train.py"], "colour"),
        (["rm", "../../etc"], "Unknown job"),
    ],
)
def test_a_bad_request_is_one_sentence_with_a_remedy(words, sentence, script):
    done = distdl(*words, code=2, cwd=script.parent)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_help_and_version():
    assert "submit" in distdl().stdout
    assert "horovod-gloo" in distdl("submit", "--help").stdout
    assert distdl("--version").stdout.startswith("distdl 0.")


def test_without_an_id_the_newest_job_is_read_and_none_is_stopped(script):
    assert "There are no jobs yet. Start one with: distdl submit -p 2" in distdl("logs", code=2).stderr
    distdl("submit", "-f", script)
    newest = distdl("submit", script).stdout.strip()
    assert newest in distdl("show").stdout
    assert distdl("logs", "-f").stdout == distdl("logs", "-f", newest).stdout
    assert "The following arguments are required: id." in distdl("stop", code=2).stderr
    for command in ("logs", "stop"):
        assert "Unknown job ''." in distdl(command, "", code=2).stderr


def test_every_command_that_reads_prints_json(script):
    distdl("submit", "-f", script)
    of_job = ("show", "time", "resources", "environment", "checkpoints")
    of_user = ("queue", "prune --keep 5 --dry-run", "clusters", "clusters check local", "vm-sizes T4", "warm", "notify")
    for words in (*of_job, *of_user):
        assert json.loads(distdl(*words.split(), "--json").stdout) is not None, words
    (first, *_) = distdl("logs", "--json").stdout.splitlines()
    assert json.loads(first).keys() == {"rank", "stream", "time", "text"}
    assert distdl("time", "--csv").stdout.startswith("rank,attempt,step,")


def test_a_closed_pipe_is_no_error(script):
    distdl("submit", "-f", script)
    done = subprocess.run(f"{DISTDL} ls --json | head -1", shell=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "["
    assert "Traceback" not in done.stderr
