"""The cause of a rank's end, read from its log: the line of a crash, the last error lines of an exit."""

import json

import pytest

from distdl_jupyter.core.failure import RankView, describe_end, is_lost_peer_error
from distdl_jupyter.core.logfile import EventWriter
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.supervisor import postmortem

CELL = "def inner():\n    import ctypes\n    ctypes.string_at(0)\ninner()"
OWN = """  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "<Cell [3]>", line 3 in inner
  File "<Cell [3]>", line 4 in <module>
  File "/x/distdl_jupyter/worker/payload.py", line 88 in _execute
  File "/x/distdl_jupyter/worker/__main__.py", line 7 in <module>
  File "<frozen runpy>", line 88 in _run_code"""
OTHER = 'Thread 0x00007f01 (most recent call first):\n  File "/x/distdl_jupyter/worker/streams.py", line 9 in run\n\n'
EXTENSIONS = f"\n\nExtension modules: {', '.join(f'torch._C._{n}' for n in range(300))} (total: 300)"


@pytest.fixture
def folder(tmp_path):
    sources = {"<Cell [3]>": {"text": CELL, "label": "Cell [3]", "cell": 3, "first_line": 1}}
    (tmp_path / "payload.json").write_text(json.dumps({"kind": "cell", "filename": "<Cell [3]>", "sources": sources}))
    return JobFolder(tmp_path)


def say(folder, *texts, rank=1, stream="err"):
    writer = EventWriter(folder.events)
    for text in texts:
        writer.write("log", rank=rank, stream=stream, text=text)
    writer.close()


def crashed(signal="SEGV"):
    return RankView(1, status="ended", signal=signal, ended=5.0)


def dump(what, head="Current thread"):
    return f"Fatal Python error: {what}\n\n{OTHER}{head} 0x00007f00 (most recent call first):\n{OWN}{EXTENSIONS}"


def test_a_crash_is_placed_in_the_cell_as_an_exception_is(folder):
    say(folder, "some warning", *dump("Segmentation fault").split("\n"))
    rank = crashed()
    rank.error = error = postmortem.explain_exit(folder, rank)
    assert error["crash"] == "Segmentation fault in Cell [3], line 3, in inner"
    assert describe_end(rank)[0] == "ended by SIGSEGV: Segmentation fault in Cell [3], line 3, in inner"
    assert [(frame["kind"], frame["line"]) for frame in error["frames"]] == [("cell", 4), ("cell", 3), ("library", 519)]
    assert error["frames"][1]["source"] == [[3, "ctypes.string_at(0)"]]
    assert error["frames"][1]["cell"] == 3
    assert error["traceback"].splitlines() == [
        "Traceback (most recent call last):",
        '  File "Cell [3]", line 4, in <module>',
        "    inner()",
        '  File "Cell [3]", line 3, in inner',
        "    ctypes.string_at(0)",
        '  File "ctypes/__init__.py", line 519, in string_at',
        "Segmentation fault",
    ]


def test_an_abort_tells_what_cpp_said_and_may_be_a_lost_peer_error(folder):
    said = "terminate called after throwing an instance of 'gloo::IoException'\n  what():  Connection closed by peer"
    say(folder, *said.split("\n"), *dump("Aborted").split("\n"))
    error = postmortem.explain_exit(folder, crashed("ABRT"))
    assert error["crash"] == "Aborted in Cell [3], line 3, in inner (Connection closed by peer)"
    assert is_lost_peer_error(error)


def test_an_abort_over_different_shapes_says_what_to_look_for(folder):
    said = "  what():  [enforce fail] 8 vs 4. Received data size doesn't match expected size."
    say(folder, said, *dump("Aborted").split("\n"))
    assert "tensors of different shapes" in postmortem.explain_exit(folder, crashed("ABRT"))["hint"]


def test_a_crash_without_a_dump_of_the_rank_tells_nothing_more(folder):
    say(folder, *dump("Segmentation fault").split("\n"), rank=0)
    say(folder, "a warning")
    assert postmortem.explain_exit(folder, crashed()) is None


USAGE = ["usage: train.py [-h] --lr LR", "train.py: error: the following arguments are required: --lr"]


def exited(message="2", type_="SystemExit"):
    error = {"type": type_, "message": message, "traceback": f"{type_}: {message}\n", "hint": ""}
    return RankView(1, status="ended", code=2, ended=5.0, ok=False, error=error)


def test_an_exit_shows_the_sentence_that_was_printed_before_it(folder):
    say(folder, *USAGE)
    say(folder, "loss 0.1", stream="out")
    error = postmortem.explain_exit(folder, exited())
    assert error["hint"] == "Its output was: train.py: error: the following arguments are required: --lr."
    assert error["traceback"].splitlines() == ["SystemExit: 2", "The last error lines:", *USAGE]


@pytest.mark.parametrize(
    ("rank", "lines", "stream"),
    [(exited("wrong data"), USAGE, "err"), (exited("2", "KeyError"), USAGE, "err"), (exited(), ["loss 0.1"], "out")],
)
def test_an_error_that_has_a_reason_or_no_printed_sentence_stays_as_it_is(folder, rank, lines, stream):
    say(folder, *lines, stream=stream)
    assert postmortem.explain_exit(folder, rank) is None


KERNEL = (
    "/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:93: operator(): block: [0,0,0], thread: [{thread},0,0] "
    'Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.'
)
TRITON = "/tmp/torchinductor_me/x.py:21: unknown: block: [1,0,0], thread: [5,0,0] Assertion `0 <= tmp4 < 64` failed."


def asserted():
    error = {
        "type": "RuntimeError",
        "message": "CUDA error: device-side assert triggered",
        "traceback": "T\n",
        "hint": "Rerun it.",
        "code": "device-side-assert",
    }
    return RankView(1, status="ended", code=1, ended=5.0, ok=False, error=error)


@pytest.mark.parametrize(
    ("lines", "hint"),
    [
        ([KERNEL.format(thread=n) for n in range(500)], "index out of bounds"),
        ([TRITON], "`0 <= tmp4 < 64` failed in x.py, line 21."),
    ],
)
def test_a_failed_check_of_a_gpu_kernel_is_shown_as_the_kernel_printed_it(folder, lines, hint):
    say(folder, "loss 0.1", *lines)
    error = postmortem.explain_exit(folder, asserted())
    assert hint in error["hint"]
    assert error["hint"].endswith("Rerun it.")
    assert error["traceback"].splitlines() == ["T", "The GPU kernel printed:", lines[0].removesuffix(".")]


def test_a_failed_check_of_a_gpu_kernel_that_printed_nothing_keeps_its_hint(folder):
    say(folder, "test.py:3: Assertion `x` failed")
    assert postmortem.explain_exit(folder, asserted()) is None


def test_an_abort_over_a_failed_check_of_a_gpu_kernel_shows_it_too(folder):
    what = "terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  CUDA error: "
    say(folder, KERNEL.format(thread=0), *f"{what}device-side assert triggered\n\n{dump('Aborted')}".split("\n"))
    error = postmortem.explain_exit(folder, crashed("ABRT"))
    assert error["code"] == "device-side-assert"
    assert "IndexKernel.cu, line 93" in error["hint"]
