"""A warm job has the same events, results, log, exit codes and errors as a cold one."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest

from distdl_jupyter import JobFailed, attach, submit
from distdl_jupyter.node.job import WARM_NOTICE
from tests.warm.conftest import assert_warm, is_warm
from tests.written import all_written

pytestmark = pytest.mark.timeout(300)


def plain(x):
    from distdl_jupyter import log, progress

    print("hello", x)
    for step in range(3):
        log(step=step, loss=1 / (step + 1))
        progress(step + 1, 3)
    return x * 2


def by_torch():
    import torch
    import torch.distributed as dist

    dist.init_process_group()
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    return total.item(), dist.get_world_size(), torch.get_num_threads()


def by_horovod():
    import horovod.torch as hvd
    import torch

    hvd.init()
    return hvd.allreduce(torch.tensor([float(hvd.rank())])).item(), hvd.size()


def fails_on_rank_1():
    rank = int(os.environ["DISTDL_RANK"])
    denominator = 1 - rank
    if rank == 0:
        import time

        time.sleep(30)
    return 1 / denominator


def exits_with_3():
    raise SystemExit(3)


def leaves_at_once():
    os.write(1, b"before\n")
    os._exit(5)


def breaks_memory():
    os.kill(os.getpid(), signal.SIGSEGV)


def writes_much():
    import ctypes
    import sys

    kept = open(os.environ["DISTDL_JOB_DIR"] + "/outputs/kept.txt", "w")  # noqa: SIM115 - nobody closes it
    kept.write("the end of the file")
    sys.stdout.buffer.write(b"bytes\n")
    print("no end of line", end="")
    ctypes.CDLL(None).printf(b"from C\n")
    return kept and None


def looks_around():
    import sys
    import threading

    return {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": [p for p in sys.path if "/jobs/" not in p],
        "flags": tuple(sys.flags), "main": sorted(vars(sys.modules["__main__"])), "stdin": sys.stdin.read(),
        "threads": sorted(t.name for t in threading.enumerate()), "cwd": os.getcwd(),
        "session": os.getsid(0) == os.getpid(), "group": os.getpgid(0) == os.getpid(),
        "streams": [(s.encoding, s.errors, s.line_buffering, s.write_through, s.name, s.mode, type(s.buffer).__name__)
                    for s in (sys.stdout, sys.stderr)],
        "signals": {n: str(signal.getsignal(n)) for n in range(1, 32)},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "environment": {k: v for k, v in sorted(os.environ.items())
                        if k not in ("DISTDL_JOB_ID", "DISTDL_JOB_DIR", "DISTDL_NONCE", "DISTDL_PIPES", "DISTDL_LEARN",
                                     "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK")},  # torch's import sets these
        "frozen": __import__("gc").isenabled(), "umask": os.umask(0o22) or True,
    }  # fmt: skip


PROGRAMS = [
    (plain, {"args": (21,)}, "plain", 1),
    (by_torch, {}, "torch", 2),
    (by_horovod, {}, "horovod-gloo", 2),
    (fails_on_rank_1, {}, "torch", 2),
    (exits_with_3, {}, "plain", 1),
    (leaves_at_once, {}, "plain", 1),
    (breaks_memory, {}, "plain", 1),
    (writes_much, {}, "plain", 1),
    (looks_around, {}, "plain", 1),
]


@pytest.mark.parametrize(("code", "given", "backend", "count"), PROGRAMS)
def test_a_function(code, given, backend, count, distdl_home, monkeypatch):
    options = {**given, "distributed_backend": backend, "process_count_per_node": count}
    warm = finished(submit(code, **options))
    assert_warm(warm)
    monkeypatch.setenv("DISTDL_WARM", "off")
    cold = finished(submit(code, **options))
    assert not is_warm(cold)
    assert unlike(warm, cold) == {}


def order_of_a_set():
    return list({"a", "b", "c", "d", "e", "f", os.environ["PYTHONHASHSEED"]})


def test_all_ranks_of_all_starts_go_through_a_set_in_one_order(distdl_home, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "random")  # as kernels may have it
    options = {"distributed_backend": "torch", "process_count_per_node": 2}
    warm = submit(order_of_a_set, **options)
    orders = warm.results(timeout=120)
    assert_warm(warm)
    orders += warm.rerun().results(timeout=120)
    orders += submit(order_of_a_set, **{**options, "distributed_backend": "horovod-mpi"}).results(timeout=120)
    monkeypatch.setenv("DISTDL_WARM", "off")
    orders += submit(order_of_a_set, **options).results(timeout=120)
    assert orders == [orders[0]] * 8


def test_a_job_may_have_a_seed_of_its_own_which_its_rerun_keeps(distdl_home, monkeypatch):
    options = {"distributed_backend": "torch", "process_count_per_node": 2}
    job = submit(order_of_a_set, **options, environment_variables={"PYTHONHASHSEED": "7"})
    orders = job.results(timeout=120) + job.rerun().results(timeout=120)
    assert orders == [orders[0]] * 4
    assert "7" in orders[0]


def test_a_script(tmp_path, distdl_home, monkeypatch):
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import sys, atexit, threading, time
        if __name__ == "__main__":
            atexit.register(print, "at the exit")
            threading.Thread(target=lambda: (time.sleep(0.2), print("a thread's last words"))).start()
            print(__file__.rsplit("/")[-1], sys.argv[1:])
            raise ValueError("on purpose")
    """)
    )
    options = {"entry_script": "train.py", "source_directory": str(tmp_path), "script_params": {"--lr": 0.1}}
    warm = finished(submit(**options))
    assert_warm(warm)
    monkeypatch.setenv("DISTDL_WARM", "off")
    cold = finished(submit(**options))
    assert unlike(warm, cold) == {}
    assert "at the exit" in [str(line) for line in warm.logs()]


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_a_rank_handles_every_signal_although_a_background_script_ignores_some(start, distdl_home):
    code = """
        import signal
        from distdl_jupyter import submit
        from distdl_jupyter.warm import start as warm_start

        def heeds():
            import signal
            given = {number.name: signal.getsignal(number) for number in signal.valid_signals() if number < 32}
            ignored = [name for name, handler in given.items() if handler is signal.SIG_IGN]
            return given["SIGINT"] is signal.default_int_handler, sorted(ignored), signal.pthread_sigmask(0, ())

        warm_start._TIMEOUT_SECONDS = 30.0
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGTERM])
        job = submit(heeds, distributed_backend="plain")
        assert job.result(timeout=120) == (True, ["SIGPIPE", "SIGXFSZ"], set()), job.result()
        print(job.id)
    """
    command = ["sh", "-c", 'trap "" HUP INT QUIT CHLD; exec "$@"', "sh", sys.executable, "-c", textwrap.dedent(code)]
    environment = {**os.environ, "DISTDL_WARM": "on" if start == "warm" else "off"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    assert is_warm(attach(ran.stdout.strip())) is (start == "warm")


def finished(job):
    with contextlib.suppress(JobFailed):
        job.result(timeout=120)
    return job


def unlike(warm, cold):
    """Return in what two jobs differ, by name."""
    warm, cold = told(warm), told(cold)
    return {name: (warm.get(name), cold.get(name)) for name in warm | cold if warm.get(name) != cold.get(name)}


def told(job):
    """Return what the job says of itself, without moments, numbers of processes and its own id, by stream."""
    kept = {}
    for event in all_written(job.folder):
        if event["type"] == "log" and event["text"].startswith((WARM_NOTICE, "Captured")):
            continue
        if event.get("code") in ("cold-start", "warm-start") or event["type"] in ("handle", "stop", "phase"):
            continue
        if event["type"] == "log":
            # How lines come together in one event is chance.
            where = ("log", event["rank"], event["stream"])
            kept[where] = [*kept.get(where, ()), *event["text"].replace(job.id, "ID").split("\n")]
            continue
        clean = {name: value for name, value in event.items() if name not in ("t", "pid", "bytes", "seconds")}
        kept.setdefault((event["type"], event.get("rank"), event.get("stream")), []).append(plainly(clean, job))
    for where, lines in kept.items():
        if "Fatal Python error: Segmentation fault" in lines:
            # The dump goes on with the frames of the template, names what that has loaded, and may come in pieces.
            kept[where] = "a dump"
    view = job.view()
    kept["end"] = [view.state, plainly(view.reason, job)]
    for rank, value in enumerate(job.results() if view.state.value == "completed" else ()):
        for name, fact in (value if isinstance(value, dict) else {"value": value}).items():
            kept[rank, name] = plainly(repr(fact), job)
    kept["files"] = sorted(p.name + p.read_text() for p in job.folder.outputs.iterdir())
    return kept


def plainly(value, job):
    # Gloo marks an operation as completed a moment after the call has returned.
    text = re.sub(r"0x[0-9a-f]+", "0x", repr(value).replace(job.id, "ID"))
    return re.sub(r"'time': [\d.]+|'waiting': \w+", "", text)
