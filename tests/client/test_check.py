"""``check`` with real jobs on this machine: correct code has no findings, and each mistake has its own."""

import inspect
import json
import re
import shutil
from pathlib import Path

import pytest

from distdl_jupyter import attach, check, jobs, submit
from distdl_jupyter.cli import main
from distdl_jupyter.core import correctness
from distdl_jupyter.core.errors import InvalidSpec, JobFailed, JobNotFound
from distdl_jupyter.core.events import State
from distdl_jupyter.core.store import create_id
from distdl_jupyter.jobs import client
from distdl_jupyter.studies.correctness import get_check_status
from tests.client import checked, checked_data, scaled
from tests.written import notes

pytestmark = pytest.mark.timeout(600)

#: What each mistake is to be found as.
FOUND = {
    "": [], "same-data": ["same-samples"], "all-data": ["same-samples"], "no-wrapper": ["gradients-not-averaged"],
    "sum": ["gradients-scaled"], "unseeded": ["different-start"], "no-set-epoch": ["no-set-epoch"],
    "sum-loss": ["gradients-scaled"], "batch-norm": ["batch-norm"], "dropout": [], "rate": ["rate-not-scaled"],
    "one-rank-rate": ["weights-depart"], "own-batches": [], "own-same": ["same-samples"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "field"),
    [({"steps": 0}, "steps"), ({"np": 1}, "process_count_per_node"), ({"compute_target": "ray"}, "compute_target")],
)
def test_invalid_checks_are_refused_before_the_start(distdl_home, given, field):
    with pytest.raises(InvalidSpec) as refused:
        check(scaled.sleeps, **given)
    assert refused.value.field == field
    assert not jobs()


def test_one_mistake_is_found_with_its_tensor_and_its_line(distdl_home, capsys):
    found = check(checked.trains, ("no-wrapper", "torch"), steps=2)
    assert [one.code for one in found.findings] == ["gradients-not-averaged"]
    assert found.findings[0].tensor in ("0.weight", "0.bias", "2.weight", "2.bias")
    assert "DistributedDataParallel(model)" in found.findings[0].example
    assert found.steps == 2
    assert "Check: 2 steps on 2 processes" in capsys.readouterr().err
    single, several = jobs()
    assert [job.state for job in (single, several)] == [State.COMPLETED] * 2
    assert get_check_status(several).single == single.id
    assert get_check_status(several).findings[0].code == "gradients-not-averaged"
    with pytest.raises(JobNotFound, match="is not a check"):
        get_check_status(single)
    # A list has one row for both, and what removes it removes both.
    assert [row.id for row in client.list_rows()] == [several.id]
    # But a note that names any other job removes nothing of it.
    other = submit(scaled.returns)
    other.wait()
    copy = shutil.copytree(several.folder.path, several.folder.path.with_name(create_id()))
    (copy / correctness.SINGLE_RUN_FILE).write_text(json.dumps({"single": other.id}), encoding="utf-8")
    attach(copy.name).remove()
    several.remove()
    assert [job.id for job in jobs()] == [other.id]


@pytest.mark.full
@pytest.mark.parametrize("mistake", FOUND)
@pytest.mark.parametrize("backend", ["torch", "horovod"])
def test_each_mistake_has_its_own_finding(distdl_home, mistake, backend):
    label = "horovod-gloo" if backend == "horovod" else "torch"
    found = check(checked.trains, (mistake, backend), backend=label)
    assert [one.code for one in found.findings] == FOUND[mistake], str(found)
    assert found.steps == 3
    if mistake == "":
        assert "in 3 steps (identical)" in found.compared[-1]
    if mistake == "dropout":
        assert any("draws random numbers" in one for one in found.left_out)


def line_of(function, comment):
    """Return the number of the line of a function that ends with a comment."""
    lines, first = inspect.getsourcelines(function)
    return first + next(at for at, line in enumerate(lines) if line.rstrip().endswith(comment))


def important(found):
    return [one.code for one in found.findings if one.code != "rate-not-scaled"]


@pytest.mark.parametrize("data", [checked_data.file_of_rank, pytest.param(checked_data.uneven, marks=pytest.mark.full)])
def test_data_that_each_rank_divides_itself_is_right(distdl_home, data):
    found = check(checked_data.trains, (data,), {"join": data is checked_data.uneven})
    assert important(found) == [], str(found)
    assert any("the samples of each step" in text for text in found.compared)


@pytest.mark.full
@pytest.mark.parametrize(
    ("data", "workers", "code", "example"),
    [
        (checked_data.stream, 2, "same-samples", "get_worker_info()"),
        (checked_data.stream_of_rank, 2, "same-samples", "get_worker_info()"),
        (checked_data.noisy, 2, "same-augmentation", "torch.manual_seed(seed + rank)"),
    ],
)
def test_wrongly_divided_data_is_found_with_the_line_of_its_loader(distdl_home, data, workers, code, example):
    found = check(checked_data.trains, (data,), {"workers": workers})
    first = found.findings[0]
    assert first.code == code, str(found)
    assert example in first.example
    assert first.file.endswith("checked_data.py")
    assert first.line == line_of(checked_data.trains, "num_workers=workers):")
    names_workers = re.search(r"\b2 (DataLoader )?workers", first.text) is not None
    assert names_workers == (workers == 2 and data is not checked_data.noisy)


@pytest.mark.parametrize(
    ("mistake", "code", "comment"),
    [("wrong", "no-sync-on-last-backward", "# the backward pass"), *(
        pytest.param(*case, marks=pytest.mark.full)
        for case in (("between", "no-sync-on-last-backward", "# the forward pass"), ("inside", "", ""), ("", "", ""))
    )],
)  # fmt: skip
def test_the_last_micro_batch_under_no_sync_is_found_with_its_line(distdl_home, mistake, code, comment):
    found = check(checked_data.accumulates, (mistake,))
    assert important(found) == [code] * bool(code), str(found)
    if code:
        assert found.findings[0].line == line_of(checked_data.accumulates, comment)
    assert any("inside no_sync()" in text for text in found.left_out) == (mistake == "inside")


@pytest.mark.full
@pytest.mark.parametrize(("code", "name"), [(checked_data.fits, "Trainer"), (checked_data.fits_with_fabric, "Fabric")])
def test_a_trainer_of_lightning_on_one_process_is_found_and_its_remedy_is_right(distdl_home, code, name):
    pytest.importorskip("lightning")
    (found,) = check(code).findings
    assert found.code == "trainer-alone"
    assert found.example == f'{name}(accelerator="cpu", devices=2, strategy="ddp")'
    right = check(code, (2,))  # which cannot run on one process
    assert important(right) == [], str(right)
    assert right.steps == 3


@pytest.mark.full
def test_local_sgd_is_correct(distdl_home):
    pytest.importorskip("accelerate")
    assert important(check(checked_data.local_sgd)) == []
    assert departed(submit(checked_data.local_sgd, process_count_per_node=2, distributed_backend="torch")) == []


@pytest.mark.full
def test_a_script_and_a_job_are_checked_from_a_terminal(distdl_home, tmp_path, capsys, monkeypatch):
    code = (
        f"import sys\nsys.path.insert(0, {str(Path.cwd())!r})\nfrom tests.client.checked import trains\ntrains('sum')\n"
    )
    (tmp_path / "train.py").write_text(code)
    assert main(["check", "-p", "2", "--json", str(tmp_path / "train.py")]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "gradients-scaled"
    assert main(["check", jobs()[1].id]) == 1
    assert "gradients are 2 times those of one process" in capsys.readouterr().out
    assert len(jobs()) == 4


def keras():
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 8)), np.ones((8, 1)), verbose=0)


@pytest.mark.full
def test_a_check_of_keras_says_that_it_checks_torch(distdl_home):
    pytest.importorskip("keras")
    with pytest.raises(JobFailed, match=r"check\(\) compares the steps of torch optimizers, so it cannot check Keras"):
        check(keras, environment_variables={"KERAS_BACKEND": "torch"})


def departed(job):
    return notes(job.wait(), "weights-depart")


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch", "horovod-gloo", "horovod-mpi"])
def test_during_a_run_the_step_is_named_after_which_a_rank_departs(distdl_home, backend):
    given = {"process_count_per_node": 3, "distributed_backend": backend, "weight_check_steps": 10}
    found = departed(submit(checked.departs, (backend, 13), **given))
    assert len(found) == 1, found
    assert found[0].startswith(
        "The weights of rank 1 of 3 differ from the others after step 20, and the same after step 10: "
    )
    right = submit(checked.departs, (backend,), **given)
    assert departed(right) == []
    first, *others = right.results()
    assert all((a == b).all() for other in others for a, b in zip(first, other, strict=True))  # bit by bit
    assert departed(submit(checked.departs, (backend, 0), {"every_own": True}, **given)) == []
