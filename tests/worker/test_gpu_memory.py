"""What a full GPU memory is explained with. No GPU is needed: errors of torch and a memory snapshot are saved here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from distdl_jupyter.supervisor import reports
from distdl_jupyter.worker import failure
from distdl_jupyter.worker.hooks import gpu_memory
from tests.worker import ranks

DATA = Path(__file__).parent / "data"
ERRORS = json.loads((DATA / "gpu_memory_errors.json").read_text())
SNAPSHOT = json.loads((DATA / "gpu_memory_snapshot.json").read_text())
GIB = 2**30


@pytest.mark.parametrize("version", ERRORS)
def test_errors_of_all_versions_of_torch_are_read(version):
    text, expected = ERRORS[version]["text"], dict(ERRORS[version]["facts"])
    assert gpu_memory.is_out_of_memory(torch.OutOfMemoryError(text))
    facts = gpu_memory.parse(text)
    processes = [[one["pid"], one["size"]] for one in facts.pop("processes")]
    assert processes == expected.pop("processes", [])
    assert facts == {"recorded": False, **expected}


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
        MemoryError("out of memory"),
        ValueError("CUDA out of memory"),
    ],
)
def test_full_memory_of_the_host_is_another_error(error):
    assert not gpu_memory.is_out_of_memory(error)


def line(label, number, size, count):
    return {"label": label, "line": number, "size": size, "count": count}


def place(positions):
    for file, line in positions:
        if not file.startswith(("/usr", "??")):
            return Path(file).name, line
    return "", 0


def test_largest_live_blocks_are_those_of_the_user_s_lines():
    lines = gpu_memory.list_lines(SNAPSHOT, 0, place)
    assert lines == [line("model.py", 12, 805306368, 2), line("<Cell [3]>", 4, 134217728, 1)]
    assert [row["line"] for row in gpu_memory.list_lines(SNAPSHOT, None, place)] == [9, 12, 4]
    assert gpu_memory.list_lines({}, 0, place) == []


@pytest.fixture
def sleeper(request):
    """Return a process with these arguments and variables."""
    arguments, variables = getattr(request, "param", ([], {}))
    code = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, **variables}, **pipes) as process:
        process.stdout.readline()
        yield process
        process.communicate(timeout=20)


def others(pid, text="", **facts):
    memory = gpu_memory.parse(f"Process {pid} has 2.00 GiB memory in use. {text}")
    return gpu_memory.identify_processes({**memory, **facts})


@pytest.mark.parametrize(
    ("sleeper", "kind"),
    [
        ((["-m", "ipykernel_launcher", "-f", "kernel-1.json"], {"DISTDL_JOB_ID": ""}), "own"),
        ((["train.py", "--token=abc"], {"DISTDL_JOB_ID": ""}), "own"),
        (([], {"DISTDL_JOB_ID": "20261127-113000-k3f9x", "DISTDL_RANK": "3"}), "job"),
    ],
    indirect=["sleeper"],
)
def test_process_that_holds_the_gpu_is_named(sleeper, kind):
    (process,) = others(sleeper.pid)
    assert (process["pid"], process["size"], process["kind"]) == (sleeper.pid, 2 * GIB, kind)
    assert "abc" not in process["name"]
    if kind == "job":
        assert (process["job"], process["rank"]) == ("20261127-113000-k3f9x", "3")


def test_process_of_another_user_is_named_with_its_user(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    (process,) = others(1)
    assert (process["kind"], bool(process["user"])) == ("other", True)


def test_hidden_processes_are_listed_only_if_this_process_is_known():
    """In a container, the driver's numbers are those of the host, and one of them may be this process."""
    text = "Process 4194000 has 3.00 GiB memory in use."
    assert others(4194001, text) == []
    assert [one["kind"] for one in others(4194001, this_process=2 * GIB)] == ["hidden"]
    assert [one["pid"] for one in others(os.getpid(), text)] == [4194000]


def process(kind, size=3 * GIB, **fields):
    return {"pid": 7, "size": size, "kind": kind, "name": "", "user": "", "job": "", "rank": "", **fields}


FULL = {"device": 0, "requested": 2 * GIB, "total": 16 * GIB, "free": GIB, "allocated": 12 * GIB, "unused": 0}


@pytest.mark.parametrize(
    ("facts", "present", "absent"),
    [
        ({}, ["2.00 GiB requested, 1.00 GiB free of 16.00 GiB", "smaller batch", "--record-gpu-memory"], ["segments"]),
        ({"requested": 32 * GIB}, ["exceeds the GPU's memory"], ["Tensors", "--record"]),
        ({"unused": 3 * GIB}, ["3.00 GiB", "--env PYTORCH_ALLOC_CONF=expandable_segments:True"], []),
        ({"unused": 3 * GIB, "pools": 3 * GIB}, [], ["expandable_segments"]),
        (
            {"lines": [line("Cell [3]", 12, 8 * GIB, 32)], "recorded": True},
            ["8.00 GiB from Cell [3], line 12 (32 blocks)"],
            ["--record-gpu-memory"],
        ),
        ({"processes": [process("other", name="python", user="ann")]}, ["user ann"], ["kill"]),
        (
            {"processes": [process("own", name="python train.py")]},
            ["python train.py", "3.00 GiB", "kill 7", "restart its kernel"],
            [],
        ),
        ({"processes": [process("job", job="x-y-k3f9", rank="1")]}, ["distdl stop k3f9"], []),
        ({"processes": [process("own", size=2**20, name="Xorg")]}, [], ["Xorg"]),
    ],
)
def test_each_cause_has_its_remedy(facts, present, absent):
    memory = {"recorded": False, **FULL, **facts, "variable": "PYTORCH_ALLOC_CONF"}
    text = gpu_memory.explain(memory, "k3f9x")
    assert [part for part in present if part not in text] == []
    assert [part for part in absent if part in text] == []


def test_error_of_a_rank_has_the_facts_as_fields_and_as_a_sentence(folder):
    code = (
        f"import torch\nbig = torch.ones(3)\nraise torch.OutOfMemoryError({ERRORS['torch 2.10 and later']['text']!r})"
    )
    error = ranks.run(folder.cell(code)).error
    assert error["code"] == "gpu-memory-full"
    assert error["gpu_memory"]["requested"] == 2093796557
    assert error["gpu_memory"]["processes"][0]["pid"] == 2493055
    assert "1.95 GiB requested, 1.58 GiB free of 14.57 GiB" in error["hint"]
    assert reports.parse({"type": "result", "ok": False, "error": error})
    broken = {**error, "gpu_memory": {"processes": [[1]]}}
    with pytest.raises(reports.InvalidReport):
        reports.parse({"type": "result", "ok": False, "error": broken})


def test_recording_without_a_gpu_changes_nothing(folder):
    ended = ranks.run(folder.cell("import torch\nint(torch.ones(3).sum())"), DISTDL_RECORD_GPU_MEMORY="1")
    assert (ended.code, folder.value(), ended.of("note")) == (0, 3, [])


@pytest.mark.parametrize(("blocking", "says"), [("", "--env CUDA_LAUNCH_BLOCKING=1"), ("1", "the line shown")])
def test_device_side_assert_offers_a_rerun_that_names_the_line(monkeypatch, blocking, says):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
    code, hint = failure.find_hint(RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors"), ())
    assert code == "device-side-assert"
    assert says in hint
