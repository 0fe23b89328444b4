"""A view that was kept beside its log: equal to the fold, and never believed when it does not fit."""

import json
import math
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.core import snapshot
from distdl_jupyter.core.events import EventWriter, encode, read_all
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.state import State
from distdl_jupyter.core.store import JobStore, new_id
from distdl_jupyter.core.view import JobView

TEXTS = st.text(max_size=8)
NUMBERS = st.floats() | st.integers(-(2**60), 2**60)
FINITE = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60)
RANKS = st.integers(-1, 4)
ERRORS = st.fixed_dictionaries({"type": TEXTS, "message": TEXTS, "time": FINITE, "frames": st.just([{"line": 3}])})


def event(type_, optional=None, **fields):
    given_ = {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fields.items()}
    head = {"v": st.just(1), "t": FINITE, "type": st.just(type_)}
    return st.fixed_dictionaries({**head, **given_}, optional=optional or {})


EVENTS = st.one_of(
    event("state", state=st.sampled_from([*State, "unheard of"]), reason=TEXTS),
    event("phase", {"seconds": FINITE}, phase=TEXTS, detail=TEXTS),
    event("handle", cluster=TEXTS, data=st.dictionaries(TEXTS, st.lists(FINITE, max_size=2), max_size=2)),
    event("rank", {"node": RANKS, "host": TEXTS, "pid": RANKS, "code": RANKS, "signal": TEXTS, "gpu": RANKS},
          rank=RANKS, status=st.sampled_from(["started", "ready", "ended"])),
    event("log", {"redraws": RANKS, "closed": st.booleans()}, rank=RANKS | st.none(), text=TEXTS,
          stream=st.sampled_from(["out", "err", "sys"])),
    event("metric", rank=RANKS, step=FINITE, values=st.dictionaries(TEXTS, NUMBERS, max_size=3)),
    event("progress", {"total": FINITE, "unit": TEXTS}, rank=RANKS, done=FINITE),
    event("note", level=TEXTS, text=TEXTS, code=TEXTS),
    event("result", rank=RANKS, ok=st.booleans(), repr=TEXTS | st.none(), error=st.none() | ERRORS),
    event("stop", {"next_in": FINITE, "kill_in": FINITE}, by=st.sampled_from(["user", "failure"]), signal=TEXTS,
          remaining=st.lists(RANKS, max_size=3)),
    event("staging", {"done": RANKS, "of": RANKS}, node=RANKS, source=TEXTS),
)  # fmt: skip


def spec(**more):
    return JobSpec(
        id=new_id(), name="digits", node_count=2, process_count_per_node=2, created=100.0, price_per_hour=1.5, **more
    )


def fold(of, events):
    view = JobView.of(of)
    for one in events:
        view.apply(one)
    return view


def same(left, right):
    """Say whether two views are equal where NaN equals itself."""
    return repr(left) == repr(right)


@given(st.lists(EVENTS, max_size=12))
def test_a_view_survives_json_whatever_was_folded(events):
    events = [json.loads(encode(one)) for one in events]  # as a reader of the file has them
    view = fold(spec(), events)
    assert same(snapshot.from_json(json.loads(json.dumps(snapshot.to_json(view)))), view)


@given(st.lists(EVENTS, max_size=8), st.lists(EVENTS, max_size=8))
def test_a_restored_view_folds_on_as_the_first_would(before, after):
    of = spec()
    restored = snapshot.from_json(json.loads(json.dumps(snapshot.to_json(fold(of, before)))))
    for one in after:
        restored.apply(one)
    assert restored.to_json().keys() == fold(of, [*before, *after]).to_json().keys()
    assert same(restored, fold(of, json.loads(json.dumps([*before, *after]))))


@pytest.fixture
def job(tmp_path):
    """A job's folder with some events in it, its lock free."""
    store, of = JobStore(tmp_path), spec()
    folder = store.prepare(of.id)
    folder.spec_file.write_text(of.dumps())
    folder = store.publish(folder)
    append(folder, {"type": "state", "state": "running"}, {"type": "log", "rank": 0, "stream": "out", "text": "a\nb"})
    return folder


def append(folder, *events):
    writer = EventWriter(folder.events)
    for one in events:
        writer.append(encode({"v": 1, "t": 101.0, **one}))
    writer.close()


def keep(folder):
    events, cursor = read_all(folder.events)
    view = fold(folder.spec(), events)
    snapshot.write(folder, view, cursor)
    return view, cursor


def test_what_was_kept_is_read(job):
    view, cursor = keep(job)
    assert snapshot.read(job) == (view, cursor)
    assert view.lines == 2
    assert os.stat(job.snapshot).st_mode & 0o777 == 0o600


def test_a_log_that_grew_is_folded_on_from_the_cursor(job):
    keep(job)
    append(job, {"type": "state", "state": "lost", "reason": "Its supervisor died."})
    view, cursor = snapshot.read(job)
    assert view.state is State.RUNNING
    rest, _ = read_all(job.events, cursor)
    for one in rest:
        view.apply(one)
    assert view == fold(job.spec(), read_all(job.events)[0])
    assert view.state is State.LOST


def test_a_log_that_became_shorter_or_another_file_is_not_believed(job):
    keep(job)
    content = job.events.read_bytes()
    os.truncate(job.events, len(content) - 1)
    assert snapshot.read(job) is None
    job.events.write_bytes(content)
    assert snapshot.read(job) is not None
    other = job.path / "other"
    other.write_bytes(content + content)
    other.replace(job.events)
    assert snapshot.read(job) is None


def test_a_copied_folder_has_no_snapshot_of_its_own(job, tmp_path):
    keep(job)
    copy = JobStore(tmp_path / "copy").jobs / job.id
    shutil.copytree(job.path, copy)
    assert snapshot.read(type(job)(copy)) is None


def with_metric(text, ranks, values):
    known = json.loads(text)
    known["view"]["metrics"] = [["loss", 1, ranks, values, 2, False, [], 1, 0, 1.0, 1.0]]
    return json.dumps(known)


def test_a_metric_has_the_values_of_its_ranks(job):
    keep(job)
    job.snapshot.write_text(with_metric(job.snapshot.read_text(), [0, 1], [0.5, 0.7]))
    view, _ = snapshot.read(job)
    assert view.metrics["loss"].values == {0: 0.5, 1: 0.7}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "null",
        lambda text: text.replace('"v":"', '"v":"0'),
        lambda text: text.replace('"running"', '"unheard of"'),
        lambda text: json.dumps({**json.loads(text), "view": {}}),
        lambda text: json.dumps({**json.loads(text), "view": {**json.loads(text)["view"], "ranks": []}}),
        lambda text: with_metric(text, [0, 1], [0.5]),
        lambda text: json.dumps({**json.loads(text), "cursor": -1}),
        lambda text: json.dumps({**json.loads(text), "cursor": "1"}),
    ],
)
def test_a_damaged_one_or_one_of_another_version_counts_as_none(job, damage):
    keep(job)
    text = job.snapshot.read_text()
    assert damage(text) != text
    job.snapshot.write_text(damage(text))
    assert snapshot.read(job) is None


def test_a_job_without_one_has_none(job):
    assert snapshot.read(job) is None


def test_keeping_is_harmless_where_it_cannot_be_done(job):
    view, cursor = keep(job)
    shutil.rmtree(job.path)
    snapshot.write(job, view, cursor)
    assert not job.path.exists()


def test_no_half_file_is_left_by_two_writers_in_turn(job):
    keep(job)
    keep(job)
    assert sorted(path.name for path in job.path.iterdir() if path.is_file()) == [
        "events.jsonl", "spec.json", "supervisor.log", "view.json",
    ]  # fmt: skip


def test_numbers_that_are_not_finite_come_back(job):
    append(job, {"type": "metric", "rank": 1, "step": 3, "values": {"loss": math.nan, "best": -math.inf}})
    keep(job)
    view, _ = snapshot.read(job)
    assert math.isnan(view.metrics["loss"].values[1])
    assert view.metrics["best"].mean == -math.inf
