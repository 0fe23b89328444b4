"""``should_checkpoint()`` is true once per warning and keeps other signal handlers."""

import os
import signal
import subprocess
import sys

import pytest


def run(code, **variables):
    environment = {**{name: value for name, value in os.environ.items() if name != "SLURM_PROCID"}, **variables}
    head = "import os, signal, threading\nfrom distdl_jupyter import should_checkpoint\n"
    return subprocess.run(
        [sys.executable, "-c", head + code], capture_output=True, text=True, timeout=60, env=environment, check=False
    )


def test_it_is_true_once_and_the_earlier_handler_is_called():
    done = run(
        "signal.signal(signal.SIGUSR1, lambda *_: print('own'))\n"
        "print(should_checkpoint())\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\nos.kill(os.getpid(), signal.SIGUSR1)\n"
        "print(should_checkpoint(), should_checkpoint())"
    )
    assert done.stdout.split() == ["False", "own", "own", "True", "False"], done.stderr


@pytest.mark.parametrize(
    ("variables", "number", "code"),
    [({}, "SIGTERM", -signal.SIGTERM), ({"SLURM_PROCID": "0"}, "SIGTERM", 0), ({}, "SIGUSR1", 0)],
)
def test_sigterm_ends_a_rank_except_in_slurm(variables, number, code):
    done = run(f"should_checkpoint()\nos.kill(os.getpid(), signal.{number})\nassert should_checkpoint()", **variables)
    assert done.returncode == code, done.stderr


def test_without_a_call_the_signal_keeps_its_effect():
    assert run("os.kill(os.getpid(), signal.SIGUSR1)").returncode == -signal.SIGUSR1
    done = run("threading.Thread(target=should_checkpoint).start()\nos.kill(os.getpid(), signal.SIGUSR1)")
    assert done.returncode == -signal.SIGUSR1, "a thread has set a handler"
