"""``log`` and ``progress`` in real ranks: what arrives, what is refused, and that nothing is lost."""

import os
import signal
import subprocess
import sys

import pytest

from tests.worker import ranks

LOG = "from distdl_jupyter import log, progress\n"


def test_numbers_of_every_kind_arrive(folder):
    ended = ranks.run(folder.cell(LOG + """
import fractions, math, numpy as np, torch
log(step=3, loss=0.5, count=7, right=True, third=fractions.Fraction(1, 4))
log(step=np.int64(4), a=np.float32(0.25), b=np.array(2.0), c=np.array([3]), d=np.bool_(True), e=np.float64("nan"))
log(step=torch.tensor(5), loss=torch.tensor(0.125, requires_grad=True), one=torch.ones(1, 1), half=torch.tensor(2.5, dtype=torch.bfloat16))
log(step=6.5, nan=math.nan, up=math.inf, down=-math.inf, huge=10**400, big=2**60)
"""))  # fmt: skip  # noqa: E501
    assert ended.code == 0, ended.err
    assert [(report["step"], report["values"]) for report in ended.of("metric")] == [
        (3, {"loss": 0.5, "count": 7, "right": 1, "third": 0.25}),
        (4, {"a": 0.25, "b": 2.0, "c": 3, "d": 1, "e": "nan"}),
        (5, {"loss": 0.125, "one": 1.0, "half": 2.5}),
        (6.5, {"nan": "nan", "up": "inf", "down": "-inf", "huge": "inf", "big": float(2**60)}),
    ]


def test_calls_without_a_step_are_counted_by_each_rank(folder):
    folder.cell(LOG + "for loss in (3.0, 2.0, 1.0):\n    log(loss=loss)\nlog(step=50, loss=0.5)\nlog(loss=0.25)")
    for rank, ended in enumerate(ranks.run_all(folder, 2)):
        assert ended.metric("loss") == [(0, 3.0), (1, 2.0), (2, 1.0), (50, 0.5), (3, 0.25)]
        assert {report["rank"] for report in ended.reports} == {rank}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("log(loss='0.1')", "The metric 'loss' must be one number, not str."),
        ("log(loss=None)", "The metric 'loss' must be one number, not None."),
        ("log(accuracy=[1])", "The metric 'accuracy' must be one number, not list."),
        ("log(loss=1j)", "The metric 'loss' must be one number, not complex."),
        ("log(loss=torch.ones(2, 3))", "The metric 'loss' must be one number, but it has the shape 2 × 3. Log its "
            "mean, or log each element under its own name."),
        ("log(step='a', loss=1)", "step must be a number, not 'a'."),
        ("progress('half')", "done must be a number, not 'half'."),
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused_by_name(call, message):
    import torch

    from distdl_jupyter import log, progress

    with pytest.raises(TypeError) as caught:
        eval(call, {"log": log, "progress": progress, "torch": torch})
    assert str(caught.value) == message


def test_a_step_that_is_not_finite_is_refused():
    from distdl_jupyter import log

    with pytest.raises(ValueError, match="step must be a finite number, not nan"):
        log(step=float("nan"), loss=1.0)


def test_progress_arrives(folder):
    ended = ranks.run(folder.cell(LOG + "progress(3, 10, 'epochs')\nprogress(0.5)"))
    assert [(r["done"], r["total"], r["unit"]) for r in ended.of("progress")] == [(3, 10, "epochs"), (0.5, None, "")]


@pytest.mark.fault("rank", "no reported number is lost")
def test_nothing_is_lost_when_a_rank_is_killed(folder):
    ended = ranks.run(folder.cell(LOG + """
import os, signal
for step in range(200):
    log(step=step, loss=1.0)
os.kill(os.getpid(), signal.SIGKILL)
"""))  # fmt: skip
    assert ended.code == -signal.SIGKILL
    assert [step for step, _ in ended.metric("loss")] == list(range(200))


def test_many_metrics_of_one_step_go_in_writes_that_stay_whole(folder):
    ended = ranks.run(folder.cell(LOG + "log(step=1, **{f'layer_{n}/weight_norm': n / 7 for n in range(1000)})"))
    found = {}
    for report in ended.of("metric"):
        assert len(str(report)) < 4096
        assert report["step"] == 1
        found |= report["values"]
    assert found == {f"layer_{n}/weight_norm": n / 7 for n in range(1000)}


def test_threads_and_prints_do_not_cut_reports(folder):
    ended = ranks.run(folder.cell(LOG + """
import sys, threading
def work(name):
    for step in range(300):
        log(step=step, **{name: step})
        print(f"{name} line", step)
        sys.stdout.write("no end ")
threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads];
"""))  # fmt: skip
    for n in range(4):
        assert [step for step, _ in ended.metric(f"t{n}")] == list(range(300))
    assert ended.out.count("no end ") == 1200
    assert "\x1e" not in ended.out


@pytest.mark.full
def test_data_loader_workers_log_too_and_a_locked_parent_does_not_hang_them(folder):
    ended = ranks.run(folder.cell(LOG + """
import threading, torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, n):
        log(step=n, loaded=n)
        return n
stop = threading.Event()
def noise():
    while not stop.is_set():
        log(step=0, noise=1.0)
threading.Thread(target=noise).start()
for _ in range(3):
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2):
        pass
stop.set();
"""))  # fmt: skip
    assert ended.code == 0, ended.err
    assert sorted(step for step, _ in ended.metric("loaded")) == sorted([*range(40)] * 3)


def test_a_program_that_a_rank_starts_reports_for_it(folder):
    ended = ranks.run(folder.cell("""
import subprocess, sys
subprocess.run([sys.executable, "-c", "from distdl_jupyter import log; log(loss=0.5)"], check=True);
"""), rank=1, size=2)  # fmt: skip
    assert [(r["rank"], r["values"]) for r in ended.of("metric")] == [(1, {"loss": 0.5})]


def test_reports_arrive_when_training_code_redirects_its_output(folder):
    ended = ranks.run(folder.cell(LOG + """
import contextlib, io, os
with contextlib.redirect_stdout(io.StringIO()):
    log(loss=1.0)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
log(loss=2.0)
"""))  # fmt: skip
    assert ended.metric("loss") == [(0, 1.0), (1, 2.0)]
    assert ended.result["ok"]


def test_a_pipe_that_does_not_block_loses_nothing(folder):
    """Some programs make the pipe that they share with others non-blocking."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    process = ranks.start(folder.cell(LOG + "for n in range(20_000):\n    log(loss=1.0)"), stdout=write)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        out = stream.read()
    _, err = process.communicate(timeout=ranks.TIMEOUT)
    assert len(ranks.Ended(process.returncode, out, err).of("metric")) == 20_000


def test_a_reader_that_is_gone_does_not_break_training(folder):
    read, write = os.pipe()
    os.close(read)
    process = ranks.start(folder.cell(LOG + "log(loss=1.0)\nprogress(1, 2)\nopen('done', 'w').close()"), stdout=write)
    os.close(write)
    process.communicate(timeout=ranks.TIMEOUT)
    assert (folder.path / "done").exists()


def test_outside_a_job_the_same_code_prints_a_line():
    code = LOG + "import numpy as np\nfor step in range(500):\n    log(step=step, loss=np.float32(0.1), acc=np.nan)\n"
    code += "progress(1, 2)"
    env = {name: value for name, value in os.environ.items() if not name.startswith("DISTDL_")}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    lines = ended.stdout.splitlines()
    assert lines[0] == "step 0  loss 0.1  acc nan"
    assert len(lines) < 10, "a fast loop does not flood the cell"
    assert ended.stderr == ""


class LateTensor:
    """Stands where a tensor on a GPU stands: its value is there only after its copy's event has passed."""

    is_cuda = True
    device = "cuda:0"

    def __init__(self, value):
        self._value = value

    def numel(self):
        return 1

    def detach(self):
        return self

    def to(self, device, non_blocking):
        assert (device, non_blocking) == ("cpu", True)
        import torch

        return torch.tensor(self._value)

    def item(self):
        raise AssertionError("the training loop would wait for the GPU here")


@pytest.mark.full
def test_values_on_a_gpu_are_sent_later_in_order_and_before_the_end(folder):
    """No GPU is needed: tensors and events that behave as torch documents them for CUDA."""
    folder.function(log_late, (LateTensor,))
    ended = ranks.run(folder)
    assert ended.code == 0, ended.err
    assert ended.metric("loss") == [(step, float(step)) for step in range(50)]
    types = [report["type"] for report in ended.reports]
    assert types.index("result") > max(n for n, type_ in enumerate(types) if type_ == "metric")
    assert ended.metric("cpu") == [(step, 1.0) for step in range(50)]


def log_late(tensor):
    import time

    import torch

    from distdl_jupyter import log

    class Event:
        def record(self, stream):
            self.stream = stream

        def synchronize(self):
            assert self.stream == "stream of cuda:0"
            time.sleep(0.02)

    torch.cuda.Event, torch.cuda.current_stream = Event, lambda device: f"stream of {device}"
    for step in range(50):
        log(step=step, loss=tensor(float(step)), cpu=1.0)
