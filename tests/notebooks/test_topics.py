"""The notebooks about single topics of distributed training, as a user runs them; what they claim they assert.

Each runs in a kernel of its own. That their jobs are the ones which are named, and that nothing is left of them, is
looked at from outside.
"""

import importlib.util
import os
import re
from pathlib import Path

import psutil
import pytest

from distdl_jupyter import jobs
from distdl_jupyter.core.events import State
from tests.notebooks.book import NOTEBOOKS, cell_with, executed, shown, told
from tests.selection import everything, few_or_all

#: Of each notebook its jobs, in their order.
JOBS = {
    "asynchronous": ["synchronous", "asynchronous"],
    "larger_than_a_node": ["parts", "stream"],
    "learning_rate": ["one", "eight"],
    "model_parallel": ["fsdp", "pipeline", "tensor"],
    "scoring": ["train", "score"],
    "segmentation_detection": ["segmentation", "detection"],
}

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def needs(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"not installed: {package}")


@pytest.mark.parametrize("name", JOBS)
def test_a_notebook_holds_what_it_claims_and_leaves_nothing_behind(name, distdl_home, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    executed(name)
    ran = sorted(jobs(), key=lambda job: job.id)
    assert [job.name for job in ran] == JOBS[name]
    assert {job.state for job in ran} == {State.COMPLETED}
    assert [
        one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(one.info["cmdline"] or [])
    ] == []
    assert [one for one in os.listdir(tmp_path) if one.startswith("tmp")] == [], "a folder was left"
    for job in ran:
        assert not [line.text for line in job.logs() if "Warning" in line.text]


@needs("deepspeed")
def test_losses_of_deepspeed_are_picked_up_and_its_checkpoint_is_one_line(distdl_home):
    executed("deepspeed")
    (job,) = jobs()
    assert job.state is State.COMPLETED
    assert set(job.metrics()) >= {"loss", "lr"}
    assert [(one.path.rpartition("/")[2], one.files) for one in job.checkpoints()] == [("global_step60", 3)]


@needs("webdataset")
def test_two_ranks_read_each_sample_of_a_webdataset_once(distdl_home):
    executed("webdataset")
    (job,) = jobs()
    assert job.state is State.COMPLETED
    assert job.metrics()["loss"].count() == 4 * 15 * 2
    assert not Path(job.spec.data[0].path).exists()


def test_the_rank_that_failed_first_is_shown_and_raised(distdl_home):
    notebook = executed("when_a_rank_fails")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    said = ["".join(one.get("text", "") or one["data"]["text/plain"] for one in cell.outputs) for cell in cells]
    assert "Rank 2 of 4 failed first" in said[1]
    assert "FAILED" in said[2]
    assert said[3] == "2 KeyError('label')\n"
    assert [line.split() for line in said[4].splitlines()[1:5]] == [["0", "11"], ["1", "11"], ["2", "11"], ["3", "11"]]


def test_old_calls_on_spark_name_the_first_failure_where_pysparks_do_not(distdl_home):
    notebook = executed("spark")
    theirs = told(notebook, "theirs = str(error)")
    assert "rank 1" not in theirs
    assert theirs.count("step 0 loss") == 2, "lines of both ranks in one stream"
    assert theirs.splitlines()[-1].endswith("and among them the cause: False")
    assert "ValueError: a bad batch, in Cell [2], line 13." in told(notebook, "ours = str(error)")
    assert [job.state for job in jobs()] == [State.COMPLETED, State.COMPLETED, State.FAILED]
    assert [job.spec.distributed_backend for job in jobs()] == ["horovod-gloo", "torch", "torch"]


def test_the_rank_that_hangs_is_named_and_the_second_attempt_goes_on_from_the_checkpoint(distdl_home):
    limit = "--hang-timeout-seconds 30"
    notebook = executed("when_training_hangs", {limit: f"--hang-timeout-seconds {few_or_all(5, 30)}"})

    def last(text):
        return cell_with(notebook, text).outputs[-1].data["text/plain"]

    (reason,) = eval(last("restart.reason"))
    assert "rank 1 is in" in reason
    assert "rank 0 waits for it in hvd." in reason
    stacks = last("job.stacks")
    assert stacks.index("Rank 1:") < stacks.index("Rank 0:")
    assert "time.sleep(3600)" in stacks
    (job,) = jobs()
    assert last("job.logs") == "['begins at step 0', 'begins at step 30']"
    steps = job.metrics().query("rank == 0")["step"].tolist()
    assert steps == sorted(steps)
    assert steps[-1] == 59
    assert len(steps) == len(set(steps)) == 60


def test_resnet50_is_measured_on_both_backends_and_its_script_runs(distdl_home):
    notebook = executed("resnet50")
    assert shown(notebook, "one.numel()") == "25557032"
    rows = [line.split()[1:] for line in shown(notebook, "pd.DataFrame").splitlines()[1:]]
    assert [(backend, int(count)) for backend, count, *_ in rows] >= [("horovod-gloo", 1), ("horovod-gloo", 2)]
    assert {backend for backend, *_ in rows} == {"horovod-gloo", "torch"}
    (script,) = [job for job in jobs() if job.spec.name == "resnet50-script"]
    assert script.state is State.COMPLETED
    rate = r"(?m)^[0-9.]+ images/s on 2 x one core each, 4 images of 32 x 32 pixels a step$"
    assert re.search(rate, told(notebook, "script_params"))


def test_a_job_file_of_batch_ai_trains_as_it_says(distdl_home, tmp_path):
    job_file = tmp_path / "batch-ai" / "job.json"
    job_file.parent.mkdir()
    for file in (NOTEBOOKS / "batch-ai").iterdir():
        (job_file.parent / file.name).write_bytes(file.read_bytes())
    assert job_file.read_text().count("--epochs 12") == 1
    job_file.write_text(job_file.read_text().replace("--epochs 12", f"--epochs {few_or_all(3, 12)}"))
    outputs = cell_with(executed("from-batch-ai", folder=tmp_path), "job = batchai.submit(").outputs
    (job,) = jobs()
    assert job.state is State.COMPLETED
    assert (job.spec.process_count, job.spec.distributed_backend) == (2, "horovod-gloo")
    assert job.spec.environment_variables == {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1"}
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)", "\n".join(str(line) for line in job.logs(rank=0)))
    assert float(accuracy) >= (0.95 if everything() else 0.5)
    assert (job.folder.outputs / "Models" / "digits.pt").stat().st_size > 100_000
    assert any("Not carried over from job.json: containerSettings" in str(output) for output in outputs)
    (page,) = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert "Completed" in page
    assert "<script" not in page


def test_cells_on_ranks_agree_fail_and_are_interrupted_and_nothing_is_left(distdl_home):
    notebook = executed("ranks")
    averaged = told(notebook, "hvd.allreduce(")
    assert "[0] 450 images" in averaged
    assert "[3] 449 images" in averaged
    assert averaged.splitlines()[-1].startswith("[0-3] tensor(0.305")
    assert 0.3 < float(told(notebook, "float(_[0])")) < 0.31
    lines = told(notebook, "train(60)").splitlines()
    assert [line for line in lines if "step" in line] == ["[0-3] step 20", "[0-3] step 40", "[0-3] step 60"]
    assert sum("own loss" in line for line in lines) == 3 * 4
    assert lines[-1].startswith("[0-3] "), "the weights are the same on all ranks"
    norms = [cell for cell in notebook.cells if cell.source.endswith("model.weight.norm().item()")]
    spoiled, healed = (cell.outputs for cell in norms if "train(" not in cell.source)
    assert [line[:5] for line in spoiled[0].data["text/plain"].splitlines()] == ["[0,2-", "[1]  "]
    assert healed[0].data["text/plain"].startswith("[0-3] ")
    shown, raised = cell_with(notebook, "batch = {").outputs
    assert "Rank 2 of 4 failed first: KeyError: 'label'" in shown.data["text/plain"]
    assert "line 3" in raised.traceback[0]
    waiting = cell_with(notebook, "waiting").outputs
    assert "[0-3] waiting 0\n" in waiting[0].data["text/plain"]
    assert waiting[-1].traceback[0].startswith("KeyboardInterrupt: The cell was interrupted")
    assert "450)" in told(notebook, "seconds, len(x)")
    (job,) = jobs()
    assert job.state is State.COMPLETED
    assert job.metrics()["loss"].count() == 60 * 4
    assert "4 ranks stopped" in told(notebook, "%dist_ranks stop")
