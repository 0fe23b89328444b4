"""Curves and metrics of real jobs are the same however they are read."""

import time

import pytest

from distdl_jupyter import jobs, submit
from distdl_jupyter.cli import show
from distdl_jupyter.core import humanize
from distdl_jupyter.html import job as saved
from distdl_jupyter.jobs.reader import JobReader
from distdl_jupyter.views import curve
from tests.written import notes

OPTIONS = {"process_count_per_node": 2, "distributed_backend": "torch"}
pytestmark = pytest.mark.timeout(300)


def drawn(job, metric="loss", **options):
    """The mean of a curve, or the lines of its ranks, as (steps, values); and whether a band is visible."""
    traces = {trace.name: trace for trace in job.figure(metric, **options).data}
    lines = [(list(trace.x), list(trace.y)) for name, trace in traces.items() if name.startswith(("mean", "rank "))]
    return lines, bool(traces["min to max"].visible)


def test_a_step_that_starts_over_with_each_epoch_continues_everywhere():
    def train():
        from distdl_jupyter import log

        for epoch in range(3):
            for step in range(50):
                log(step=step, loss=3 - epoch + 0.01 * step)
            log(step=step, val=float(epoch))

    job = submit(train, **OPTIONS).wait()
    steps, values = list(range(150)), pytest.approx([3 - step // 50 + 0.01 * (step % 50) for step in range(150)])
    assert drawn(job) == ([(steps, values)], False)
    assert drawn(job, each_rank=True) == ([(steps, values)] * 2, False)
    assert drawn(job, "val") == ([([49, 99, 149], [0.0, 1.0, 2.0])], False)
    frame = job.metrics()
    for rank in range(2):
        own = frame[(frame["rank"] == rank) & frame["loss"].notna()]
        assert (own["step"].tolist(), own["loss"].tolist()) == (steps, values)
    loss = job.view().metrics["loss"]
    assert loss.step == 149
    assert loss.trail[0][1] >= 3
    assert loss.trail[-1][1] < 1.5
    band = JobReader(job.folder, curves=True)
    band.catch_up()
    shown = band.curves.get("loss").get_band()
    assert (shown.last_step, shown.last) == (149, pytest.approx(loss.mean))


def test_steps_that_are_logged_again_after_a_restart_replace_the_ones_before():
    def train():
        from distdl_jupyter import checkpoint_dir, log

        kept = checkpoint_dir() / "step"
        first = int(kept.read_text()) if kept.exists() else 0
        for step in range(first, 20):
            log(step=step, loss=float(first + step))
            if step == 15 and first == 0:
                kept.write_text("10")
                raise RuntimeError("once")

    job = submit(train, process_count_per_node=1, distributed_backend="plain", max_restarts=1).wait()
    expected = [float(step) for step in range(10)] + [10.0 + step for step in range(10, 20)]
    assert drawn(job) == ([(list(range(20)), expected)], False)


def test_a_metric_cannot_take_the_place_of_a_column():
    def train():
        from distdl_jupyter import log

        log(step=0, loss=1.0, time=12.5, rank=9, attempt=3)
        log(step_time=1.0)

    job = submit(train, **OPTIONS).wait()
    frame = job.metrics()
    assert sorted(frame["rank"]) == [0, 0, 1, 1]
    assert frame["time"].dt.year.min() > 2000
    assert frame[["time_value", "rank_value", "attempt_value"]].dropna().to_numpy().tolist() == [[12.5, 9, 3]] * 2
    assert set(job.view().metrics) == {"loss", "time_value", "rank_value", "attempt_value", "step_time"}
    assert len(notes(job, "metric-renamed")) == 1


def test_a_printed_metric_cannot_take_the_place_of_a_column():
    def train():
        print("step 3 loss 0.5")
        print({"loss": 0.25, "attempt": 2})

    job = submit(train, process_count_per_node=1, distributed_backend="plain").wait()
    assert job.metrics()["loss"].tolist() == [0.5, 0.25]
    assert "attempt" not in job.metrics()


def printing(before, after):
    def train():
        for line in [*before, *after]:
            print(line)

    return submit(train, process_count_per_node=1, distributed_backend="plain").wait().view()


BAR = "Loading weights: 100%|##########| 41/41 [00:00<00:00, 410.00it/s]"


def test_a_bar_that_has_ended_is_not_the_progress_of_the_steps_after_it():
    view = printing([BAR], [f"step {step} loss {1 / (1 + step)}" for step in range(20)])
    assert (view.done, view.total) == (None, None)
    assert view.ranks[0].last_step == 19


def test_the_bar_of_the_training_stays_when_its_result_is_printed():
    view = printing(
        [f"{step * 10}%|#####     | {step}/10 [00:01<00:01, 9.90it/s, loss=0.42]" for step in range(1, 11)],
        ["test loss 0.3"],
    )
    assert (view.done, view.total) == (10, 10)


def test_time_in_the_queue_is_not_run_time():
    def hold():
        import time

        time.sleep(6)

    def quick():
        pass

    first = submit(hold, process_count_per_node=1, distributed_backend="plain")
    job = submit(quick, process_count_per_node=1, distributed_backend="plain", after=[first.id]).wait()
    view, now = job.view(), time.time()
    assert view.compute_wait(now) > 4
    assert view.compute_run_time(now) < 4
    assert view.compute_run_time(now) + view.compute_wait(now) == pytest.approx((view.ended or now) - view.created)
    text = humanize.ran_and_waited(view.compute_run_time(now), view.compute_wait(now))
    assert text.startswith("ran ")
    assert text in repr(jobs())
    assert any(f", waited {humanize.duration(view.compute_wait(now))}" in line for line in show.describe_job(job))
    assert text in saved.list_time_details(view, now)
    assert first.view().compute_wait(now) == 0


def ends(job, metric):
    """The newest value of the metric as text, and the value at the end of its curve."""
    reader = JobReader(job.folder, curves=True)
    reader.catch_up()
    shown = curve.make_curve(reader.curves, metric)
    picker = next(one.value for one in curve.list_metrics(reader.view) if one.name == metric)
    return {picker, shown.value, humanize.number(shown.band.rows[-1].mean)}


def test_the_picker_and_the_end_of_the_curve_have_one_number():
    def train():
        from distdl_jupyter import log

        for step in range(10):
            for micro_batch in range(3):
                log(step=step, loss=0.3 - 0.04 * micro_batch)
        for step in (1, 2, 4, 3):
            log(step=step, late=float(step))

    job = submit(train, **OPTIONS).wait()
    lines, has_band = drawn(job)
    assert (lines[0][1][:4], has_band) == (pytest.approx([0.26] * 4), False), "a band compares ranks"
    assert ends(job, "loss") == {humanize.number(0.22)}
    assert ends(job, "late") == {"4"}
