"""Checkpoints of a job: which files they are, their steps, how they are loaded, copied and deleted."""

import os
import shutil

import pytest

from distdl_jupyter.core import checkpoints
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.options import parse_keep_rule
from distdl_jupyter.core.series import MetricStore
from distdl_jupyter.core.store import JobFolder


@pytest.fixture
def job(tmp_path):
    folder = JobFolder(tmp_path / "20261125-010203-k3f9x")
    folder.checkpoints.mkdir(parents=True)
    return folder


@pytest.fixture
def book():
    """Steps 0 to 99, one a second from t=1000; the loss falls, the accuracy rises."""
    made = MetricStore()
    for step in range(100):
        for rank in (0, 1):
            values = {"loss": 1 - step / 100 + rank / 10, "accuracy": step / 100}
            made.apply({"type": "metric", "t": 1000.0 + step, "rank": rank, "step": step, "values": values})
    return made


def write(folder, name, content=b"x" * 9000, at=2000.0):
    path = folder.checkpoints / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (at, at))


def paths(folder, book=None):
    return [one.path for one in checkpoints.find_all(folder, book or MetricStore())]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-400.pt", 400), ("step400.pt", 400), ("epoch=3-step=412.ckpt", 412), ("checkpoint-50", 50),
        ("global_step10", 10), ("ckpt_00012.pth", 12), ("iter_0000100", 100), ("7.pt", 7), ("run/step-3/model.pt", 3),
        ("epoch-3.pt", None), ("last.pt", None), ("model_v2.pt", None), ("step.pt", None), ("resnet50.pt", None),
    ],
)  # fmt: skip
def test_the_step_is_parsed_from_the_file_name(name, step):
    assert checkpoints.parse_step(name) == step


def test_files_are_listed_newest_first_with_the_metrics_of_their_step(job, book):
    for step in (10, 30, 20):
        write(job, f"step-{step}.pt")
    write(job, "step-40.pt.new")
    write(job, "history.json", b"[]")
    found = checkpoints.find_all(job, book)
    assert [one.path for one in found] == ["step-30.pt", "step-20.pt", "step-10.pt"]
    assert found[0].metrics == pytest.approx({"loss": 0.75, "accuracy": 0.3})
    assert (found[0].size, found[0].files, found[0].is_named) == (9000, 1, True)


def test_a_name_without_a_step_gets_the_one_reported_when_it_was_written(job, book):
    write(job, "best.pt", at=1040.5)
    (one,) = checkpoints.find_all(job, book)
    assert (one.step, one.is_named) == (40, False)
    assert one.metrics["accuracy"] == pytest.approx(0.4)
    write(job, "early.pt", at=10.0)
    assert checkpoints.find_all(job, book)[-1].step is None


def test_files_written_in_parts_are_one_checkpoint(job):
    for name in ("dcp/.metadata", "dcp/__0_0.distcp", "dcp/__1_0.distcp"):
        write(job, name, b"12345")
    for name in ("global_step20/mp_rank_00_model_states.pt", "global_step20/zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        write(job, name)
    write(job, "latest", b"global_step20")
    for name in ("checkpoint-50/model.safetensors", "checkpoint-50/config.json", "checkpoint-50/rng/rank_0.pth"):
        write(job, name)
    for name in ("tf/ckpt-3.index", "tf/ckpt-3.data-00000-of-00001", "tf/checkpoint"):
        write(job, name, b"abc")
    found = {one.path: one for one in checkpoints.find_all(job, MetricStore())}
    assert sorted(found) == ["checkpoint-50", "dcp", "global_step20", "tf/ckpt-3"]
    assert (found["dcp"].files, found["dcp"].size) == (3, 15)
    assert found["checkpoint-50"].files == 3
    assert set(found["tf/ckpt-3"].parts) == {"tf/ckpt-3.index", "tf/ckpt-3.data-00000-of-00001"}
    assert "dcp_to_torch_save" in found["dcp"].load_code
    assert "get_fp32_state_dict_from_zero_checkpoint" in found["global_step20"].load_code
    assert "tag='global_step20'" in found["global_step20"].load_code
    assert "AutoModel.from_pretrained" in found["checkpoint-50"].load_code
    assert "tf.train.Checkpoint" in found["tf/ckpt-3"].load_code


def test_a_model_saved_right_into_the_folder_hides_no_checkpoint_beside_it(job):
    write(job, "model.safetensors")
    write(job, "config.json", b"{}")
    write(job, "checkpoint-5/model.safetensors")
    assert paths(job) == ["checkpoint-5", "."]


def test_links_are_not_followed(job, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "step-1.pt").write_bytes(b"x")
    (job.checkpoints / "step-1").symlink_to(tmp_path / "elsewhere")
    (job.checkpoints / "step-2.pt").symlink_to(tmp_path / "elsewhere" / "step-1.pt")
    assert paths(job) == []
    shutil.rmtree(job.checkpoints)
    assert paths(job) == []


def test_a_checkpoint_is_chosen_by_step_or_path(job, book):
    for step in (10, 20):
        write(job, f"step-{step}.pt")
    write(job, "last.pt", at=1020.0)
    known = checkpoints.find_all(job, book)
    assert checkpoints.choose(known).path == "step-20.pt"
    assert checkpoints.choose(known, step=10).path == "step-10.pt"
    assert checkpoints.choose(known, path="last.pt").path == "last.pt"
    with pytest.raises(InvalidSpec, match=r"no checkpoint of step 15\.") as refused:
        checkpoints.choose(known, step=15)
    assert "10 and 20" in refused.value.hint
    with pytest.raises(InvalidSpec, match="no checkpoint 'x'"):
        checkpoints.choose(known, path="x")
    with pytest.raises(InvalidSpec, match="has no checkpoint"):
        checkpoints.choose([])


def test_a_copy_is_the_newest_one_there_under_all_names_of_the_newest(job, tmp_path):
    for step in (10, 20, 30):
        write(job, f"step-{step}.pt", f"of {step}".encode())
    write(job, "last.pt", b"of 30")
    write(job, "latest", b"step-30.pt\n")
    write(job, "vocabulary.txt", b"a b c")
    (job.checkpoints / "newest").symlink_to("step-30.pt")
    known = checkpoints.find_all(job, MetricStore())
    target = tmp_path / "new"
    checkpoints.copy(checkpoints.choose(known, step=20), target, shutil.copy2)
    assert sorted(one.name for one in target.iterdir()) == [
        "last.pt",
        "latest",
        "newest",
        "step-20.pt",
        "vocabulary.txt",
    ]
    assert (target / "last.pt").read_bytes() == b"of 20"
    assert (target / "newest").read_bytes() == b"of 20"
    assert (target / "latest").read_text() == "step-20.pt"
    assert (job.checkpoints / "last.pt").read_bytes() == b"of 30"


def test_a_folder_of_parts_is_copied_with_the_file_that_names_it(job, tmp_path):
    for step in (1, 2):
        write(job, f"global_step{step}/mp_rank_00_model_states.pt", str(step).encode())
    write(job, "latest", b"global_step2")
    known = checkpoints.find_all(job, MetricStore())
    checkpoints.copy(checkpoints.choose(known, step=1), tmp_path / "new", shutil.copy2)
    assert (tmp_path / "new" / "latest").read_text() == "global_step1"
    assert [one.name for one in (tmp_path / "new").iterdir() if one.is_dir()] == ["global_step1"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("last 1", ["step-90.pt"]),
        ("last 2", ["step-90.pt", "step-60.pt"]),
        ("last 1, best 1 of lowest accuracy", ["step-90.pt", "step-10.pt"]),
        ("last 1, best 2 of highest loss", ["step-90.pt", "step-30.pt", "step-10.pt"]),
        ("last 1, best 2 of accuracy", ["step-90.pt", "step-60.pt"]),
        ("last 1, best 2 of loss", ["step-90.pt", "step-60.pt"]),
        ("last 9", ["step-90.pt", "step-60.pt", "step-30.pt", "step-10.pt"]),
    ],
)
def test_the_newest_and_the_best_are_kept(job, book, text, kept):
    for step in (10, 30, 60, 90):
        write(job, f"step-{step}.pt")
    write(job, "last.pt", at=3000.0)
    known = checkpoints.find_all(job, book)
    for one in checkpoints.find_superfluous(parse_keep_rule(text), known, now=2100.0):
        checkpoints.remove(one)
    assert [name for name in paths(job, book) if name != "last.pt"] == kept
    assert (job.checkpoints / "last.pt").exists()


def test_files_outside_a_series_stay_and_files_of_one_step_stay_together(job, book):
    for name in ("vocabulary.pkl", "best.pt"):
        write(job, name, at=1010.0)
    for step in (10, 30, 60):
        for name in (f"step-{step}.pt", f"optimizer-step-{step}.pt", f"generator/step-{step}.pt", f"part0-of-{step}.pt",
                     f"part1-of-{step}.pt"):  # fmt: skip
            write(job, name, at=1000.0 + step)
    gone = {
        one.path
        for one in checkpoints.find_superfluous(parse_keep_rule("last 2"), checkpoints.find_all(job, book), now=2100.0)
    }
    assert gone == {"step-10.pt", "optimizer-step-10.pt", "generator/step-10.pt", "part0-of-10.pt", "part1-of-10.pt"}


def test_targets_of_links_stay(job, book):
    for step in (10, 20, 30, 40):
        write(job, f"step-{step}.pt")
        write(job, f"global_step{step}/model.pt")
    (job.checkpoints / "best.pt").symlink_to("step-10.pt")
    (job.checkpoints / "links").mkdir()
    (job.checkpoints / "links" / "best").symlink_to("../global_step20/model.pt")
    (job.checkpoints / "links" / "round").symlink_to("round")
    gone = {
        one.path
        for one in checkpoints.find_superfluous(parse_keep_rule("last 1"), checkpoints.find_all(job, book), now=2100.0)
    }
    assert gone == {"step-20.pt", "step-30.pt", "global_step10", "global_step30"}


def test_a_checkpoint_that_may_still_be_written_is_not_deleted(job, book):
    write(job, "step-10.pt", at=2095.0)
    write(job, "step-20.pt", at=2099.0)
    assert checkpoints.find_superfluous(parse_keep_rule("last 1"), checkpoints.find_all(job, book), now=2100.0) == []


def test_deleting_a_folder_leaves_what_its_links_lead_to(job, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious").write_text("x")
    write(job, "checkpoint-1/config.json", b"{}")
    (job.checkpoints / "checkpoint-1" / "data").symlink_to(tmp_path / "data")
    (one,) = checkpoints.find_all(job, MetricStore())
    checkpoints.remove(one)
    assert (tmp_path / "data" / "precious").exists()
    assert paths(job) == []


@pytest.mark.parametrize("text", ["3", "last", "last 0", "best 2 of loss", "last 2, best of loss", "last -1"])
def test_invalid_rules_are_refused_with_an_example(text):
    with pytest.raises(InvalidSpec, match="keep_checkpoints must be a rule") as refused:
        parse_keep_rule(text)
    assert "last 3" in refused.value.message
