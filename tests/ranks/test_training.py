"""Training on ranks that stay: they meet in one cell and work together in the next ones."""

import pytest

from distdl_jupyter import capture
from distdl_jupyter.core.errors import InvalidSpec

SETUP = {
    "torch": "import torch, torch.distributed as dist\ndist.init_process_group('gloo')",
    "horovod-gloo": "import torch, horovod.torch as hvd\nhvd.init()",
    "horovod-mpi": "import torch, horovod.torch as hvd\nhvd.init()",
}
SUM = {
    "torch": "t = torch.ones(2) * (rank + 1)\ndist.all_reduce(t)\nt.tolist()",
    "horovod-gloo": "hvd.allreduce(torch.ones(2) * (rank + 1), op=hvd.Sum, name='t').tolist()",
    "horovod-mpi": "hvd.allreduce(torch.ones(2) * (rank + 1), op=hvd.Sum, name='t').tolist()",
}


@pytest.fixture(params=["torch", pytest.param("horovod-gloo", marks=pytest.mark.full), "horovod-mpi"])
def backend(request):
    return request.param


def test_ranks_meet_in_one_cell_and_add_up_in_the_next(started, backend):
    count = 3 if backend == "torch" else 2
    session = started(count, backend)
    assert session.setup_call in ("hvd.init()", "torch.distributed.init_process_group()")
    assert session.run(SETUP[backend]).errors == {}
    total = float(sum(range(1, count + 1)))
    for _ in range(2):
        assert dict(session.run(SUM[backend]).values) == {rank: [total, total] for rank in range(count)}
    session.stop()
    assert session.job.state.value == "completed"


CELL = {
    "torch": """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.ones(1) * scale * (dist.get_rank() + 1)
dist.all_reduce(t)
inside = "own namespace"
dist.destroy_process_group()
(t.item(), "kept" in globals())
""",
    "horovod-gloo": """
import torch, horovod.torch as hvd
hvd.init()
got = hvd.allreduce(torch.ones(1) * scale * (hvd.rank() + 1), op=hvd.Sum, name="t")
inside = "own namespace"
hvd.shutdown()
(got.item(), "kept" in globals())
""",
}


@pytest.mark.parametrize("backend", [pytest.param("torch", marks=pytest.mark.full), "horovod-gloo"])
def test_a_jobs_code_runs_on_them_again_and_again(started, backend):
    session = started(2, backend)
    session.run("kept = rank")
    for scale in (1, 10):
        draft = capture.capture_cell(CELL[backend], {"scale": scale})
        answer = session.run_distributed(draft).check()
        met = {"torch": "torch.distributed", "horovod-gloo": "horovod.torch"}[backend]
        assert dict(session.run(f"import {met} as met\nmet.is_initialized()").values) == {0: True, 1: True}
        assert dict(answer.values) == dict.fromkeys((0, 1), (3.0 * scale, False))
    assert dict(session.run("(kept, 'inside' in globals(), 'scale' in globals())").values) == {
        0: (0, False, False), 1: (1, False, False),
    }  # fmt: skip
    assert not list((session.job.folder.path / "serving").glob("run-*"))
    session.stop()
    assert session.job.state.value == "completed"


def test_modules_that_travel_are_loaded_anew_each_time(shared, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for value in (1, 22):
        (tmp_path / "beside_the_ranks.py").write_text(f"VALUE = {value}")
        draft = capture.capture_cell("import beside_the_ranks\nbeside_the_ranks.VALUE", {})
        assert "beside_the_ranks.py" in [one.name for one in draft.captured]
        assert dict(shared.run_distributed(draft).check().values) == {0: value, 1: value}


def test_an_error_of_a_jobs_code_names_its_cell(shared):
    draft = capture.capture_cell("x = [1]\nx[rank]", {"rank": 5}, execution_count=9)
    error = shared.run_distributed(draft).errors[1]
    assert error["type"] == "IndexError"
    assert [(f["label"], f["line"]) for f in error["frames"] if f["kind"] == "cell"] == [("Cell [9]", 3)]
    assert dict(shared.run("rank").values) == {0: 0, 1: 1}


def test_a_check_of_the_code_refuses_what_a_job_would_refuse(shared):
    draft = capture.capture_cell("nobody_defines_this", {})
    with pytest.raises(InvalidSpec, match="nobody_defines_this"):
        shared.run_distributed(draft)


def test_functions_and_scripts_run_too(shared, tmp_path):
    def added(a, b):
        return a + b

    assert dict(shared.run_distributed(capture.capture_function(added, (1, 2))).check().values) == {0: 3, 1: 3}
    (tmp_path / "train.py").write_text("import sys\nprint('script', sys.argv[1:])")
    draft = capture.capture_script("train.py", str(tmp_path), {"--epochs": 2})
    events = []
    shared.run_distributed(draft, on_event=events.append).check()
    assert {event.text for event in events if hasattr(event, "stream")} == {"script ['--epochs', '2']\n"}
    assert dict(shared.run("rank").values) == {0: 0, 1: 1}


def test_deeply_nested_code_runs_on_ranks(shared):
    draft = capture.capture_cell(f"1{' + 1' * 2000}", {})
    assert dict(shared.run_distributed(draft).check().values) == {0: 2001, 1: 2001}
    assert dict(shared.run(f"1{' + 1' * 2000}").check().values) == {0: 2001, 1: 2001}
