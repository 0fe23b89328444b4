"""The agent starts, carries, signals and ends real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.node.driver import Driven, until
from tests.processes import executable, is_alive

WAIT = "import time; print('up', flush=True); time.sleep(600)"
#: Starts a daemon in a session of its own, which prints its pid, and waits.
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {cleared}
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(float(sys.argv[1]))
"""
SAYS_PID = "print(os.getpid(), flush=True)"
CLEARED = "os.execve('/bin/sh', ['sh', '-c', 'echo $$; exec sleep 600'], {})"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def up(agent, channel=1, lines=1):
    until(lambda: agent.text(channel).count("\n") >= lines, "the process did not come up")
    return agent.text(channel).split()


# what processes say and how they end ----------------------------------------------------------------


def test_output_and_exit_of_each_process_come_apart(ready):
    code = "import os, sys; print('out', os.environ['X']); print('err', file=sys.stderr); sys.exit(int(sys.argv[1]))"
    one = ready.python(code, process=0, out=1, err=2, environment={"X": "a"}, arguments=["0"])
    two = ready.python(code, process=1, out=3, err=4, environment={"X": "b"}, arguments=["7"])
    pids = ready.start(one, two)["pids"]
    assert set(pids) == {"0", "1"}
    assert ready.exit(0) == {"type": "exit", "kind": "rank", "process": 0, "code": 0, "signal": None, "evidence": ""}
    assert ready.exit(1)["code"] == 7
    assert [ready.text(channel) for channel in (1, 2, 3, 4)] == ["out a\n", "err\n", "out b\n", "err\n"]
    assert ready.closed == {1, 2, 3, 4}


def test_both_streams_can_go_to_one_channel_in_the_order_of_writing(ready):
    code = "import os; [os.write(1 + i % 2, b'%d ' % i) for i in range(6)]"
    ready.start(ready.python(code, out=5, err=5))
    ready.exit(0)
    assert ready.text(5) == "0 1 2 3 4 5 "


def test_a_process_has_the_agents_own_version_first_and_the_marks(ready):
    code = "import os; [print(os.environ[name]) for name in ('DISTDL_JOB_ID', 'DISTDL_PIPES', 'PYTHONPATH')]"
    ready.start(ready.python(code, environment={"PYTHONPATH": "/somewhere"}))
    ready.exit(0)
    job, run, paths = ready.text(1).splitlines()
    assert (job, run) == (ready.job, str(ready.run))
    first, *others = paths.split(":")
    assert (Path(first) / "distdl_jupyter" / "node" / "agent.py").is_file()
    assert "/somewhere" in others


def test_a_process_inherits_the_hosts_environment_but_nothing_of_the_connection(agent, tmp_path):
    one = agent(environment={"SSH_CLIENT": "1.2.3.4 5 22", "DISTDL_NONCE": "other", "KEEP": "kept"}).beat()
    one.prepare(tmp_path)
    one.start(
        one.python("import os; print(*(name for name in ('KEEP', 'SSH_CLIENT', 'DISTDL_NONCE') if name in os.environ))")
    )
    one.exit(0)
    assert one.text(1) == "KEEP\n"


def test_a_rank_is_given_a_part_of_a_divided_gpu_by_the_name_that_cuda_knows(agent, tmp_path):
    executable(
        tmp_path / "nvidia-smi",
        "echo 'GPU 0: A100 (UUID: GPU-a)'\n"
        "echo '  MIG 3g.20gb     Device  0: (UUID: MIG-a)'\necho '  MIG 3g.20gb     Device  1: (UUID: MIG-b)'",
    )
    one = agent(environment={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}).beat()
    one.prepare(tmp_path)
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['DISTDL_GPU'])"
    one.start(one.python(code, environment={"CUDA_VISIBLE_DEVICES": "0,1", "DISTDL_GPU": "1"}))
    one.exit(0)
    assert one.text(1) == "MIG-a,MIG-b MIG-b\n"


def test_a_service_has_an_open_input_others_an_empty_one(ready):
    code = "import sys; print('up', flush=True); print(repr(sys.stdin.read()), flush=True)"
    ready.start(ready.python(code, process=0), ready.python(code, kind="service", out=3, err=4, open_input=True))
    assert ready.exit(0)["code"] == 0
    assert ready.text(1) == "up\n''\n"
    up(ready, 3)
    assert ready.ask("alive")["alive"] == 0, "a service ends with the job and is nobody's left-over"
    ready.ask("signal", name="TERM", to="all")
    assert not ready.exits("service")
    assert ready.ask("end", keep=False)["ended"] == 1


def test_a_bare_program_is_looked_for_beside_the_interpreter_first(ready, tmp_path):
    ready.start({"process": 0, "argv": ["python", "-c", "import sys; print(sys.executable)"], "environment": {},
                 "directory": str(tmp_path), "out": 1, "err": 2})  # fmt: skip
    ready.exit(0)
    assert Path(ready.text(1).strip()).parent == Path(sys.executable).parent


# what cannot be done --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (
            {"argv": ["no-such-program"]},
            "Cannot start no-such-program: not found next to the job's Python or on PATH",
        ),
        ({"argv": ["/no/such"]}, "Cannot start /no/such: No such file or directory"),
        ({"argv": ["/etc/passwd"]}, "Cannot start /etc/passwd: Permission denied"),
        ({"directory": "/no/such/folder"}, "/no/such/folder"),
        ({"argv": []}, "is not valid: IndexError"),
        ({"environment": {"A=B": "c"}}, "Cannot start "),
        ({"argv": ["sh", "a\0b"]}, "Cannot start sh: "),
    ],
)
def test_of_processes_that_cannot_all_be_started_none_runs(ready, broken, says):
    fine = ready.python(WAIT, process=0, out=1, err=2)
    reply = ready.start(fine, {**ready.python(WAIT, process=1, out=3, err=4), **broken})
    assert says in reply["error"]
    assert "pids" not in reply
    assert ready.ask("alive")["alive"] == 0
    assert ready.exits() == {}
    assert ready.start(ready.python("print('fine')", process=2, out=5))["pids"]
    assert ready.exit(2)["code"] == 0
    assert set(ready.exits()) == {2}


@pytest.mark.parametrize(
    ("type_", "fields"),
    [
        ("unheard-of", {}),
        ("start", {}),
        ("start", {"processes": [{"argv": "x"}]}),
        ("start", {"processes": 3}),
        ("signal", {"name": "HUP", "to": "all"}),
        ("signal", {"name": "KILL", "to": "everybody"}),
        ("ports", {"count": "many", "address": "127.0.0.1"}),
        ("ports", {"count": 1, "address": "192.0.2.1"}),
        ("pipes", {"ranks": [{"rank": "../0", "out": 1, "err": 2}]}),
        ("put", {}),
        ("get", {"channel": 1, "paths": ["../x"]}),
        ("get", {"channel": 1, "paths": ["/etc/passwd"]}),
        ("answer", {"shell": None}),
        ("reach", {"targets": [["a"]], "seconds": 1}),
        ("sweep", {"job": "../x"}),
        ("prepare", {"job": "another", "folder": "/", "proof": None}),
    ],
)
def test_a_bad_request_is_answered_and_harms_nothing(ready, type_, fields):
    pids = ready.start(ready.python(WAIT))["pids"]
    up(ready)
    reply = ready.ask(type_, **fields)
    assert reply["error"].endswith(".")
    assert len(reply["error"].splitlines()) == 1
    assert is_alive(pids["0"])
    assert ready.ask("alive")["alive"] == 1


def test_without_a_job_nothing_is_started(agent):
    one = agent()
    for request in ("start", "pipes", "put", "get", "signal"):
        assert (
            "prepare" in one.ask(request, processes=[], ranks=[], channel=0, paths=[], name="TERM", to="all")["error"]
        )
    assert one.ask("alive")["alive"] == 0
    assert "error" not in one.ask("end", keep=False)
    assert one.wait() == 0


# signals --------------------------------------------------------------------------------------------


def test_an_interrupt_reaches_ranks_and_their_children_and_nothing_else(ready):
    code = '''
import subprocess, sys, time
child = """
try:
    __import__('time').sleep(600)
except KeyboardInterrupt:
    print('child interrupted', flush=True)
"""
process = subprocess.Popen([sys.executable, "-c", child])
print("up", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    process.wait()
    print("rank interrupted", flush=True)
'''
    other = ready.python(WAIT, kind="launcher", out=3, err=4)
    ready.start(ready.python(code), other)
    up(ready), up(ready, 3)
    time.sleep(1)  # the child needs its handler
    assert ready.ask("signal", name="INT", to="ranks")["sent"] == 1
    assert ready.exit(0)["code"] == 0
    assert ready.text(1) == "up\nchild interrupted\nrank interrupted\n"
    assert not ready.exits("launcher")


def test_an_interrupt_passes_over_a_launcher_to_the_ranks_that_it_started(ready, tmp_path):
    (tmp_path / "launcher.py").write_text(
        "import subprocess, sys\n"
        "one = subprocess.Popen([sys.executable, '-P', '-m', 'distdl_jupyter.worker'])\n"
        "sys.exit(one.wait() and 5)\n"
    )
    folder = ready.folder
    payload = {"format": 1, "names": [], "path": [], "working_directory": str(folder), "kind": "cell",
               "code": "import time\nprint('up')\ntime.sleep(600)", "filename": "<c>",
               "sources": {"<c>": {"text": "", "label": "c", "cell": 1, "first_line": 1}}}  # fmt: skip
    (folder / "payload.json").write_text(json.dumps(payload))
    assert ready.ask("pipes", ranks=[{"rank": 0, "out": 7, "err": 8}], variables=[{"MINE": "1"}]).keys() == {
        "type", "request"
    }  # fmt: skip
    launcher = {"kind": "launcher", "process": 0, "argv": ["{python}", str(tmp_path / "launcher.py")],
                "environment": {"DISTDL_JOB_DIR": str(folder), "DISTDL_RANK": "0"}, "out": 1, "err": 1}  # fmt: skip
    ready.start(launcher)
    up(ready, 7)
    ready.ask("signal", name="INT", to="ranks")
    assert ready.exit(0, kind="launcher")["code"] == 5
    assert "Interrupted" in ready.text(8)
    assert ready.text(1) == ""


# the end, however it comes --------------------------------------------------------------------------


def two_daemons(agent):
    """Start a rank that waits and two daemons, one without its marks; return all pids."""
    pids = agent.start(
        agent.python(DAEMON.format(cleared=f"import time; {SAYS_PID}"), arguments=["600"]),
        agent.python(DAEMON.format(cleared=CLEARED), process=1, out=3, err=4, arguments=["0"]),
        agent.python(DEAF, process=2, out=5, err=6),
    )["pids"]
    (one,), (two,) = up(agent), up(agent, 3)
    up(agent, 5)
    return [pids["0"], pids["2"], int(one), int(two)]


def gone(agent, pids):
    assert [pid for pid in pids if is_alive(pid)] == []
    assert not agent.run.exists()


def test_the_end_leaves_nothing(ready):
    pids = two_daemons(ready)
    assert ready.ask("end", keep=False)["ended"] >= 4
    assert ready.wait() == 0
    gone(ready, pids)
    assert not ready.folder.exists()
    assert ready.closed >= {1, 3, 4, 5}


def test_when_the_input_ends_all_are_gone(ready):
    pids = two_daemons(ready)
    ready.hang_up()
    assert ready.wait(30) == 1
    gone(ready, pids)
    assert not ready.folder.exists()


def test_when_nobody_speaks_for_the_timeout_all_are_gone(agent, tmp_path):
    one = agent(timeout=3)
    one.prepare(tmp_path)
    pids = two_daemons(one)
    assert one.wait(40) == 1
    gone(one, pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_of_a_terminal_does_nothing(ready, number):
    ready.process.send_signal(number)
    assert ready.ask("alive")["alive"] == 0
    ready.start(ready.python(f"import signal; print(signal.getsignal({int(number)}) == signal.SIG_IGN)"))
    ready.exit(0)
    assert ready.text(1) == "False\n", "ranks must not inherit that a signal is ignored"


def test_an_agent_that_is_told_to_end_ends_its_job(ready):
    pids = two_daemons(ready)
    ready.process.terminate()
    assert ready.wait() == 1
    gone(ready, pids)


def test_when_nobody_reads_any_more_all_are_gone(agent, tmp_path):
    one = agent()
    one.beat().prepare(tmp_path)
    pids = one.start(one.python("while True: print('x' * 1000)"), one.python(WAIT, process=1, out=3, err=4))["pids"]
    up(one, 3)
    reading = os.dup(one.process.stdout.fileno())
    os.close(reading)
    # The reader's thread holds the pipe: put something else in its place, so that the last reader is gone.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, one.process.stdout.fileno())
    os.close(nothing)
    assert one.wait(30) == 1
    gone(one, pids.values())


def test_when_the_agent_is_killed_its_watchdog_ends_the_job(ready):
    pids = two_daemons(ready)[:3]  # the fourth has neither marks nor parents, only the agent could know it
    cleared = two = up(ready, 3)
    ready.process.kill()
    ready.wait()
    until(lambda: not any(map(is_alive, pids)), "the job outlives its agent")
    until(lambda: not ready.run.exists() and not ready.folder.exists())
    for pid in {*cleared, *two}:
        os.kill(int(pid), signal.SIGKILL)


def test_when_agent_and_watchdog_are_killed_ranks_end_by_the_lifeline(ready):
    watching = "import sys, time; from pathlib import Path; import os; from distdl_jupyter.worker import streams\n"
    watching += "streams._die_with_parent = lambda: None\nstreams.adopt(Path(os.environ['DISTDL_PIPES']), 0)\n"
    watching += "print('up', flush=True); time.sleep(600)"
    pid = ready.start(ready.python(watching))["pids"]["0"]
    up(ready)
    children = Path(f"/proc/{ready.process.pid}/task/{ready.process.pid}/children").read_text().split()
    (watchdog,) = {int(child) for child in children} - {pid}
    os.kill(watchdog, signal.SIGKILL)
    ready.process.kill()
    until(lambda: not is_alive(pid), "the rank outlives agent and watchdog")
    subprocess.run(["rm", "-r", ready.run, ready.folder], check=True)


def test_values_and_files_of_a_job_that_lost_its_supervisor_stay(ready):
    (ready.folder / "outputs" / "model.pt").write_text("m")
    (ready.folder / "payload.pkl").write_text("p")
    ready.hang_up()
    ready.wait()
    assert sorted(path.name for path in ready.folder.iterdir()) == ["outputs"]
    assert (ready.folder / "outputs" / "model.pt").read_text() == "m"


def test_a_wire_that_is_broken_ends_the_job(agent, tmp_path):
    one = Driven()
    one.prepare(tmp_path)
    pids = one.start(one.python(WAIT))["pids"]
    up(one)
    one.say(b"this is no frame at all")
    assert one.wait(30) == 1
    gone(one, pids.values())
    one.close()
    assert "InvalidFrame" in one.errors


# two agents, sweeping -------------------------------------------------------------------------------


def test_a_sweep_ends_what_another_agent_has_left(agent, tmp_path):
    one, two = agent().beat(), agent().beat()
    one.prepare(tmp_path)
    (one.folder / "results" / "rank-0.pkl").write_text("v")
    pids = one.start(one.python(WAIT))["pids"]
    up(one)
    assert two.ask("sweep", job=one.job, base=str(tmp_path))["killed"] == 1
    until(lambda: not is_alive(pids["0"]))
    assert sorted(path.name for path in one.folder.iterdir()) == ["results"]


# where the job is -----------------------------------------------------------------------------------


def test_a_host_that_finds_the_proof_shares_the_folder(agent, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "proof").write_text("4711")
    one, two = agent(), agent()
    found = one.prepare(tmp_path, folder=str(own), proof=["proof", "4711"], working_directory=str(tmp_path))
    assert (found["shared"], found["folder"], found["working_directory_there"]) == (True, str(own), True)
    other = two.prepare(tmp_path, folder=str(own), proof=["proof", "0815"], working_directory="/not/there")
    assert (other["shared"], other["working_directory_there"]) == (False, False)
    assert Path(other["folder"]).stat().st_mode & 0o777 == 0o700
    one.ask("end", keep=False), two.ask("end", keep=False)
    one.wait(), two.wait()
    assert (own / "proof").exists()
    assert not Path(other["folder"]).exists()


# much output ----------------------------------------------------------------------------------------


def test_a_flood_takes_nothing_from_signals_and_answers(agent, tmp_path):
    one = agent().beat()
    one.prepare(tmp_path)
    one.start(*(one.python("while True: print('x' * 2000)", process=rank, out=rank + 1, err=9) for rank in range(4)))
    until(lambda: len(one.data.get(1, b"")) > 2_000_000)
    assert one.ask("alive", within=20)["alive"] == 4
    one.ask("signal", name="KILL", to="all", within=20)
    for rank in range(4):
        assert one.exit(rank, 20)["signal"] == "KILL"
