"""What ranks print of their training becomes metrics and progress, in the forms in which common programs print it."""

import dataclasses
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.core.redact import Redactor
from distdl_jupyter.core.series import MetricStore
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.jobs.results import read_metrics
from distdl_jupyter.supervisor.log_reader import LogText, RankReport
from distdl_jupyter.supervisor.output_metrics import MAX_LINE_CHARS, MAX_NAMES, OutputMetrics
from distdl_jupyter.supervisor.recorder import EventRecorder
from distdl_jupyter.views.curve import format_label
from tests.written import all_written, events_of

SPEC = JobSpec(id="20261121-024912-k3f9x", name="x", kind="function", created=1.0, process_count_per_node=2)
OUT, OTHER = Stream(-1, 0, "out"), Stream(-1, 1, "out")


def readings(*lines):
    return list(OutputMetrics().read(0, "\n".join(lines)))


def values(*lines):
    return [(one.step, one.values) for one in readings(*lines)]


@pytest.mark.parametrize(("line", "step", "found"), [
    ("step 20 loss 1.19", 20, {"loss": 1.19}),
    ("step 20  loss 1.19  accuracy 0.98", 20, {"loss": 1.19, "accuracy": 0.98}),
    ("2026-11-24 10:00:00,123 INFO train.py:12 - global_step=20, train_loss=1e-4", 20, {"train_loss": 1e-4}),
    ("loss: 0.31 - accuracy: 0.98", 0, {"loss": 0.31, "accuracy": 0.98}),
    (" 37/100 [=====>.........] - ETA: 1s - loss: 0.31 - accuracy: 0.98", 37, {"loss": 0.31, "accuracy": 0.98}),
    ("\x1b[1m37/100\x1b[0m \x1b[32m━━━━━\x1b[0m\x1b[37m━━━━━\x1b[0m \x1b[1m1s\x1b[0m 9ms/step - loss: nan - mae: 0.4",
     37, {"loss": math.nan, "mae": 0.4}),
    ("100/100 - 1s - 9ms/step - loss: 0.31 - val_loss: inf", 100, {"loss": 0.31, "val_loss": math.inf}),
    ("Train Epoch: 2 [640/60000 (1%)]\tLoss: 2.300000", 60640, {"loss": 2.3}),
    ("Test set: Average loss: 0.0496, Accuracy: 9835/10000 (98%)", 0, {"test_loss": 0.0496, "test_accuracy": 0.9835}),
    ("Test set: Average loss: 0.0496, Accuracy: 98.35%", 0, {"test_loss": 0.0496, "test_accuracy": 98.35}),
    (" 37%|###7      | 37/100 [00:03<00:06,  9.90it/s, loss=0.42]", 37, {"loss": 0.42}),
    ("Epoch 1:  37%|███▋      | 37/100 [00:03<00:06,  9.90it/s, v_num=0, train_loss=0.42]", 37, {"train_loss": 0.42}),
    ("37it [00:03,  9.90it/s, loss=0.42, speed=3]", 37, {"loss": 0.42, "speed": 3}),
    ("Epoch 0/4 ━━━━━╸━━━━ 37/100 0:00:03 • 0:00:06 9.90it/s v_num: 0 train_loss: 0.42", 37, {"train_loss": 0.42}),
    ('{"loss": 0.3, "step": 20}', 20, {"loss": 0.3}),
    ('INFO {"iteration": 20, "train/reward": -1.5, "time": 1732.5, "rank": 1}', 20, {"train/reward": -1.5}),
    ("{'loss': 0.3, 'grad_norm': nan, 'epoch': 0.5}", 0.5, {"loss": 0.3, "grad_norm": math.nan}),
    ("{'loss': '0.3', 'learning_rate': '5e-05', 'epoch': '0.5'}", 0.5, {"loss": 0.3, "learning_rate": 5e-5}),
    ("{'eval_loss': '0.3', 'eval_runtime': '2.1', 'epoch': '1'}", 1, {"eval_loss": 0.3}),
    ("[2026-05-01 10:00:00] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.001], mom=[[0.9, 0.99]]",
     10, {"lr": 0.001}),
    ("steps: 10 loss: 0.6230 iter time (s): 0.021 samples/sec: 1500.3", 10, {"loss": 0.623, "samples/sec": 1500.3}),
    (" iteration       10/     100 | elapsed time per iteration (ms): 123.4 | lm loss: 9.1E+00 | loss scale: 1.0 |",
     10, {"lm_loss": 9.1}),
    ("Epoch: [0][  10/5005]\tTime  0.3\tLoss 6.9e+00 (7.0e+00)\tAcc@1   1.00 (  0.10)", 10, {"loss": 6.9, "acc@1": 1}),
    ("Epoch [3/10], Step [20/100], Loss: 0.31", 220, {"loss": 0.31}),
    ("[2,  2000] loss: 2.173", 2000, {"loss": 2.173}),
    ("loss: 2.303  [   64/60000]", 64, {"loss": 2.303}),
    ("iter 100: loss 2.5012, time 12.3ms, mfu 3.2%", 100, {"loss": 2.5012, "mfu": 3.2}),
    ("step 250: train loss 2.4, val loss 2.5", 250, {"train_loss": 2.4, "val_loss": 2.5}),
    ("Epoch 3: train_loss=0.3 val_loss=.4", 3, {"train_loss": 0.3, "val_loss": 0.4}),
    ("INFO:tensorflow:loss = 0.31, step = 100 (2.3 sec)", 100, {"loss": 0.31}),
])  # fmt: skip
def test_line_of_a_common_form_gives_its_step_and_its_values(line, step, found):
    [one] = readings(line)
    assert one.step == step
    assert one.values == pytest.approx(found, nan_ok=True)


@pytest.mark.parametrize("line", [
    "", "Step 3 of 10: port 8080", "connection lost: 5 hosts across 3 racks", "processed 300 steps", "loss",
    "loss: none",    "loss: 1.2.3", "accuracy: 12ab", "error: 5", "return 0", "score 3", "Epoch 1/5",
    '{"level": "info", "step": 1, "port": 80}',
    "Downloading loss_fn.bin: 37%|### | 37.0M/100M [00:03<00:06, 9.90MB/s]",
    "x" * MAX_LINE_CHARS + " step 20 loss 1.19",
])  # fmt: skip
def test_line_of_something_else_gives_nothing(line):
    assert readings(line) == []


def test_steps_go_on_from_epoch_to_epoch():
    mnist = [f"Train Epoch: {epoch} [{step}/1000 (1%)]\tLoss: 1" for epoch in (1, 2, 3) for step in (0, 500)]
    assert [step for step, _ in values(*mnist)] == [0, 500, 1000, 1500, 2000, 2500]
    keras = ["Epoch 1/2", " 50/100 [=>..] - loss: 1", "100/100 [===] - loss: 1 - val_loss: 2"]
    assert [step for step, _ in values(*keras, "Epoch 2/2", *keras[1:])] == [50, 100, 150, 200]
    cifar = [f"[{epoch}, {step:5d}] loss: 1" for epoch in (1, 2, 3) for step in (2000, 4000)]
    assert [step for step, _ in values(*cifar)] == [2000, 4000, 6000, 8000, 10000, 12000]
    bars = [f" {step}%|## | {step}/100 [00:03<00:06, 9.9it/s, loss=1]" for step in (1, 100, 1, 100)]
    assert [step for step, _ in values(*bars)] == [1, 100, 101, 200]


def test_lines_without_a_step_stand_where_training_has_come_to_or_are_counted():
    assert [step for step, _ in values(*["loss: 1"] * 3)] == [0, 1, 2]
    assert [step for step, _ in values("epoch 1 loss: 1", "epoch 1 loss: 1", "epoch 2 loss: 1")] == [1, 2, 3]
    assert [step for step, _ in values("step 40 loss 1", "val loss: 2", "val loss: 2", "step 50 loss 1")] == [
        40,
        40,
        41,
        50,
    ]
    test = " 37%|## | 37/50 [00:03<00:06, 9.9it/s, loss=1]"
    assert [step for step, _ in values("90%|## | 90/100 [00:03<00:06, 9.9it/s, acc=1]", test)] == [90, 90]


def test_axis_of_each_rank_is_its_own_and_all_begin_again_when_forgotten():
    output = OutputMetrics()
    steps = [next(iter(output.read(rank, "loss 1"))).step for rank in (0, 1, 0)]
    output.reset_steps()
    assert [*steps, *(next(iter(output.read(rank, "loss 1"))).step for rank in (0, 1))] == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(("lines", "progress"), [
    ([" 37%|###7  | 37/100 [00:03<00:06,  9.90it/s]"], (37, 100, "steps")),
    (["Epoch 2/5", " 37/100 [==>...] - loss: 1"], (137, 500, "steps")),
    (["Epoch [3/10], loss: 0.3"], (3, 10, "epochs")),
    (["iteration 10/ 100 | lm loss: 1"], (10, 100, "steps")),
    (["Epochs:  20%|## | 1/5 [00:03<00:06, 1.2s/it]", " 37%|###7  | 37/100 [00:03<00:06,  9.90it/s]"], (1, 5, "steps")),
    (["100%|### | 5/5 [00:03<00:06, 1.2s/it]", " 37%|###7  | 37/100 [00:03<00:06,  9.90it/s]"], (37, 100, "steps")),
    (["step 10 loss 1"], None),
    (["100%|### | 5/5 [00:03<00:06, 1.2s/it]", "  0%|  | 0/9 [00:00<?, ?it/s]"], (5, 5, "steps")),
])  # fmt: skip
def test_bar_or_line_that_says_of_how_many_gives_progress(lines, progress):
    assert [one.progress for one in readings(*lines)][-1:] == [progress]


def test_names_beyond_the_most_are_left_out():
    output = OutputMetrics()
    found = [name for at in range(MAX_NAMES + 5) for one in output.read(0, f"loss_{at}: 1") for name in one.values]
    assert len(found) == MAX_NAMES


def test_of_a_flood_a_part_is_read_and_the_newest_lines_are_in_it():
    flood = readings(*(f"step {step} loss 1" for step in range(100_000)))
    assert 0 < len(flood) < 1000
    assert flood[-1].step == 99_999
    assert readings(*["no mark in it"] * 100_000, "step 3 loss 1")[-1].step == 3


_PARTS = st.sampled_from([
    "loss", "Loss:", "=", "1.5", "nan", "1e999", "step", "Epoch", "[", "]", "/", "{", "}", '"', "'", ":", "%|", "|",
    "it [", "━", " ", "\t", "\r", "\n", "\x1b[1m", "9" * 400, "-", ",", "é", "\ud800", "\0",
])  # fmt: skip


@given(st.one_of(st.text(), st.lists(_PARTS).map("".join), st.lists(_PARTS).map(" ".join)))
@example("loss" * 300_000)
@example("step 20 " + "a" * 1_000_000)
@example("{'loss': " * 200)
def test_no_text_raises_and_every_step_is_finite(text):
    for one in OutputMetrics().read(0, text):
        assert math.isfinite(one.step)
        assert one.progress is None or all(map(math.isfinite, one.progress[:2]))


# recorder ---------------------------------------------------------------------------------------


def printed(recorder, *lines, stream=OUT):
    recorder.take(stream, [LogText("\n".join(lines))])


def reported(recorder, step, **metrics):
    recorder.take(OUT, [RankReport({"type": "metric", "step": step, "values": metrics})])


def folded(folder):
    view, book = JobView.from_spec(SPEC), MetricStore()
    for event in events_of(folder):
        view.apply(event)
        book.apply(event)
    return view, book


def test_printed_metrics_are_marked_and_folded_like_reported_ones(folder):
    recorder = EventRecorder(folder, SPEC)
    printed(recorder, "step 1 loss 3", "step 2 loss 2")
    printed(recorder, "step 2 loss 4", stream=OTHER)
    recorder.close()
    view, book = folded(folder)
    assert view.metrics == recorder.view.metrics
    assert view.output_metrics == ["loss"]
    assert format_label(view, "loss") == "loss (from the output)"
    assert (view.metrics["loss"].mean, book.get("loss").count) == (3, 3)
    assert (view.done, view.ranks[1].last_step) == (None, 2)


def test_reported_metric_replaces_what_was_read_and_ends_the_reading_of_all_ranks(folder):
    recorder = EventRecorder(folder, SPEC)
    printed(recorder, "step 1 loss 3 accuracy 0.5")
    reported(recorder, 7, loss=2.0)
    printed(recorder, "step 8 loss 1 accuracy 0.6")
    printed(recorder, "step 8 loss 1 accuracy 0.6", stream=OTHER)
    recorder.close()
    view, book = folded(folder)
    assert view.output_metrics == ["accuracy"]
    assert {name: metric.count for name, metric in view.metrics.items()} == {"accuracy": 1, "loss": 1}
    assert [row.step for row in book.get("loss").get_band().rows] == [7]
    assert read_metrics(folder).drop(columns="time").fillna(-1).to_dict("list") == {
        "rank": [0, 0], "step": [1, 7], "accuracy": [0.5, -1], "loss": [-1, 2],
    }  # fmt: skip


def test_next_supervisor_reads_no_output_of_a_job_that_reports(folder):
    first = EventRecorder(folder, SPEC)
    printed(first, "step 1 accuracy 0.5")
    reported(first, 7, loss=2.0)
    first.close()
    events = all_written(folder)
    second = EventRecorder(folder, SPEC)
    for event in events:
        second.fold(event)
    printed(second, "step 8 accuracy 0.6")
    assert second.view.metrics["accuracy"].count == 1


def test_printed_progress_is_taken_until_a_rank_reports_its_own(folder):
    recorder = EventRecorder(folder, SPEC)
    printed(recorder, " 37%|## | 37/100 [00:03<00:06, 9.9it/s]")
    recorder.flush()
    assert (recorder.view.done, recorder.view.total, recorder.view.unit) == (37, 100, "steps")
    recorder.take(OUT, [RankReport({"type": "progress", "done": 2, "total": 5, "unit": "epochs"})])
    printed(recorder, " 38%|## | 38/100 [00:03<00:06, 9.9it/s]")
    recorder.flush()
    assert (recorder.view.done, recorder.view.total, recorder.view.unit) == (2, 5, "epochs")


def test_name_of_a_printed_metric_holds_no_secret(folder):
    recorder = EventRecorder(folder, SPEC, Redactor.from_variables({}, {"MY_TOKEN": "correct-horse-battery"}))
    printed(recorder, '{"loss": 0.5, "correct-horse-battery": 3}')
    recorder.close()
    assert "loss" in recorder.view.metrics
    assert "correct-horse" not in folder.events.read_text()


def test_nothing_is_read_where_it_is_not_asked_for_or_no_rank_printed_it(folder):
    recorder = EventRecorder(folder, dataclasses.replace(SPEC, metrics_from_output=False))
    printed(recorder, "step 1 loss 3")
    assert recorder.view.metrics == {}
    recorder = EventRecorder(folder, SPEC)
    printed(recorder, "step 1 loss 3", stream=Stream(-1, None, "out"))
    assert recorder.view.metrics == {}


def test_printed_metric_is_a_sign_that_training_goes_on_and_a_bar_alone_is_none(folder):
    recorder = EventRecorder(folder, SPEC)
    printed(recorder, "Fetching 3 files:  67%|## | 2/3 [00:03<00:06, 9.9s/it]")
    recorder.flush()
    assert (recorder.view.done, recorder.has_reports) == (2, False)
    printed(recorder, "step 1 loss 3")
    assert recorder.has_reports
