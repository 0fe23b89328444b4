"""Jobs side by side: their metrics, and the options that differ."""

from distdl_jupyter.core.spec import UNKNOWN, Captured, CodeSource, JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.views import job_page
from distdl_jupyter.views.job_table import choose_metric


def subject(id_, metrics=(), state="completed", seconds=60.0, **changes):
    changes.setdefault("name", "digits")
    spec = JobSpec(id=f"20261121-024900-{id_}", created=1000.0,
                   source=CodeSource(notebook="/x/quickstart.ipynb", execution_count=7), **changes)  # fmt: skip
    view = JobView.from_spec(spec)
    events = [{"type": "state", "t": 1001.0, "state": "running"}]
    for step, values in enumerate(metrics):
        events += [{"type": "metric", "t": 1002.0 + step, "rank": r, "step": step, "values": values}
                   for r in range(spec.process_count)]  # fmt: skip
    if state != "running":
        events.append({"type": "state", "t": 1000.0 + seconds, "state": state, "reason": ""})
    for event in events:
        view.apply(event)
    return spec, view


def lines(subjects):
    return {row.field: row for row in job_page.compare_specs([(spec, UNKNOWN) for spec, _ in subjects])}


def test_only_what_differs_is_side_by_side():
    batch = lambda n: (Captured(name="batch", kind="value", detail=f"int = {n}", size=5),)  # noqa: E731
    one = subject("aaaaa", captured=batch(32))
    two = subject("bbbbb", process_count_per_node=2, distributed_backend="horovod-gloo", captured=batch(64))
    found = lines([one, two])
    assert found["process_count"].values == ("1 process", "1 × 2 = 2 processes")
    assert found["distributed_backend"].values == ("plain", "horovod-gloo")
    assert (found["captured.batch"].label, found["captured.batch"].values) == ("batch", ("32", "64"))
    assert found.keys() == {"process_count", "distributed_backend", "captured.batch"}
    assert lines([one, one]) == {}


def test_the_metric_to_begin_with_is_the_loss_that_most_jobs_have():
    jobs = [subject("aaaaa", [{"aux_loss": 1.0, "accuracy": 0.5}]), subject("bbbbb", [{"accuracy": 0.6, "loss": 2.0}]),
            subject("ccccc", [{"loss": 3.0}])]  # fmt: skip
    names = job_page.list_metric_names(view for _, view in jobs)
    assert names == ["accuracy", "loss", "aux_loss"]
    assert choose_metric(names) == "loss"
    assert choose_metric(job_page.list_metric_names([])) == ""
