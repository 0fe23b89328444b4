"""The panel without a browser: what its model says, what the log sends, how the curve is kept."""

import time
from types import SimpleNamespace

import pytest

from distdl_jupyter import attach
from distdl_jupyter.core.log import Begin, LogBook
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.view import JobView
from distdl_jupyter.panels.feed import Feed, Pace
from distdl_jupyter.panels.logview import LogWidget
from distdl_jupyter.panels.model import JobModel
from distdl_jupyter.panels.monitor import panel
from distdl_jupyter.readers import Reading
from distdl_jupyter.views.job_table import default_metric
from tests.conftest import wait_for
from tests.panels import recorded


@pytest.fixture
def tell():
    """Return a function that writes a recorded job into the test's own data directory."""
    with recorded.telling() as tell_:
        yield tell_


@pytest.fixture
def shown():
    """Return a function that makes a panel; its thread ends with the test."""
    panels = []

    def shown_(id_):
        panels.append(panel(attach(id_)))
        # What a page says when it is able to draw curves.
        panels[-1].curve.bar._handle_custom_msg({"type": "ready"}, [])
        return panels[-1]

    yield shown_
    for each in panels:
        each.feed.stop()
        each.feed.finish()


RANKS = {f"rank {rank}" for rank in range(4)}


def make_model():
    view = JobView.of(JobSpec(id="20261121-024912-k3f9", name="digits"))
    return JobModel(SimpleNamespace(view=view, book=SeriesBook(), has_checkpoints=False))


def test_the_loss_is_shown_first():
    assert default_metric(["accuracy", "train_loss", "lr"]) == "train_loss"
    assert default_metric(["accuracy", "lr"]) == "accuracy"


def test_a_card_travels_only_when_more_than_the_time_changed():
    model = make_model()
    cards = []
    model.observe(lambda change: cards.append(change["new"]), "card")
    began = model.card["now"]
    for tenth in range(20):
        model.publish(began + tenth / 10)
    assert cards == []
    model.view.apply({"type": "state", "t": began, "state": "starting"})
    model.publish(began + 2.1)
    assert len(cards) == 1


def test_the_sign_of_life_comes_once_a_second():
    model = make_model()
    beats = []
    model.observe(lambda change: beats.append(change["new"]), "beat")
    began = model.beat
    for tenth in range(41):
        model.publish(began + tenth / 10 + 0.001)
    assert 3 <= len(beats) <= 5


def test_a_panel_shows_a_recorded_job(tell, shown):
    view = shown(tell("running").id)
    wait_for(lambda: view.curve.bar.summary or view.notice.problem, what="the curve in words")
    assert view.notice.problem == ""
    assert view.head.card["state"] == "running"
    assert [metric["name"] for metric in view.curve.bar.metrics] == ["loss", "accuracy", "lr"]
    assert view.curve.bar.metric == "loss"
    assert view.curve.bar.summary.startswith("Curve of loss over 740 steps: from 2.")
    assert len(view.curve.bar.table) == 24
    figure = wait_for(lambda: view.curve.box.children[1].children, what="the figure")[0]
    drawn = len(figure.data[2].x)
    view.curve.bar.mode = "ranks"
    wait_for(lambda: {trace.name.split("%")[0].strip() for trace in figure.data} > RANKS, what="a line a rank")
    view.curve.bar.mode = "band"
    wait_for(lambda: len(figure.data[2].x) == drawn, what="the band again")


def test_a_panel_follows_new_events(tell, shown):
    story = tell("running")
    view = shown(story.id)
    wait_for(lambda: view.head.card["done"] == 744, what="the state of now")
    story.t = time.time()
    story.train(800, 0.0)
    wait_for(lambda: view.head.card["done"] == 792, what="what came later")
    wait_for(lambda: view.curve.bar.table[0][0] == "800", what="the newest step in the table")


def test_an_ended_panel_still_answers_to_choices(tell, shown):
    view = shown(tell("completed").id)
    assert view.feed.finish(60)
    figure = view.curve.box.children[1].children[0]
    assert figure.layout.yaxis.type == "linear"
    view.curve.bar.logarithmic = True
    assert figure.layout.yaxis.type == "log"
    assert view.notice.card["result"] == "{'test_accuracy': 0.978}"
    assert view.lines.tail["total"] == view.model.reading.log.total


def test_a_press_that_cannot_be_carried_out_is_answered(tell, shown):
    view = shown(tell("completed").id)
    view.feed.finish(60)
    view._pressed(None, {"type": "cancel"}, [])
    wait_for(lambda: "nothing to cancel" in view.notice.problem, what="the answer")


def test_a_panel_whose_thread_breaks_says_so(tell, shown, monkeypatch):
    story = tell("running")
    monkeypatch.setattr(SeriesBook, "apply", lambda self, event: 1 / 0)
    view = shown(story.id)
    assert view.feed.finish(30)
    assert "ZeroDivisionError" in view.notice.problem
    assert story.id in view.notice.problem


class Wire:
    """The messages of a log widget."""

    def __init__(self, book, window=None):
        self.widget = LogWidget(SimpleNamespace(log=book, window=window))
        self.sent = []
        self.widget.send = lambda content, buffers=None: self.sent.append(content)

    def hello(self, viewer):
        self.widget._heard(None, {"type": "hello", "viewer": viewer}, [])

    def seen(self, viewer):
        """Replay the messages as a front end does; return its rows."""
        rows, seq = None, None
        for message in self.sent:
            if message.get("viewer", viewer) != viewer:
                continue
            if message["type"] == "older":
                rows.update({row[0]: row[4] for row in message["rows"]})
                continue
            if "viewer" in message or (rows is not None and message.get("whole")):
                rows = {}
            elif rows is None or message["seq"] != seq + 1:
                continue
            seq = message["seq"]
            rows.update({row[0]: row[4] for row in message["rows"]})
        return rows


def lines(*texts, rank=0, t=0.0):
    return [{"type": "log", "t": t, "rank": rank, "stream": "out", "text": text} for text in texts]


def apply(book, events):
    for event in events:
        book.apply(event)


def test_a_front_end_that_comes_late_gets_all_and_then_only_what_is_new():
    book = LogBook(1)
    wire = Wire(book)
    apply(book, lines("a", "b"))
    wire.widget.push()
    assert wire.sent == []
    assert [row[4] for row in wire.widget.tail["rows"]] == ["a", "b"]
    wire.hello("one")
    wire.widget.push()
    apply(book, lines("c"))
    wire.widget.push()
    wire.hello("two")
    apply(book, lines("d"))
    wire.widget.push()
    apply(book, lines("e"))
    wire.widget.push()
    assert list(wire.seen("one").values()) == list("abcde")
    assert list(wire.seen("two").values()) == list("abcde")
    assert [len(message["rows"]) for message in wire.sent] == [2, 1, 1, 4, 1]


def test_what_nobody_heard_is_not_lost():
    book = LogBook(1)
    wire = Wire(book)
    for number in range(300):
        apply(book, lines(str(number)))
        wire.widget.push()
    wire.hello("late")
    wire.widget.push()
    assert list(wire.seen("late").values()) == [str(number) for number in range(300)]


def test_nothing_is_sent_when_nothing_changed():
    book = LogBook(1)
    wire = Wire(book)
    wire.hello("one")
    wire.widget.push()
    before = len(wire.sent)
    wire.widget.push()
    assert len(wire.sent) == before
    assert not wire.widget.behind


def test_a_pace_gives_turns():
    pace = Pace(0.5)
    assert [pace.due(tenth / 10) for tenth in range(10)] == [True, *[False] * 4, True, *[False] * 4]


def test_a_flood_sends_the_newest_rows_and_the_earlier_ones_when_asked():
    book = LogBook(1)
    wire = Wire(book)
    wire.widget._reading.window = SimpleNamespace(before=lambda n, most: book.between(n - most, n))
    apply(book, lines("begin"))
    wire.hello("one")
    wire.widget.push()
    apply(book, lines(*(str(number) for number in range(3000))))
    wire.widget.push()
    assert list(wire.seen("one").values()) == [str(number) for number in range(2000, 3000)]
    assert wire.sent[-1]["whole"]
    assert wire.sent[-1]["total"] == 3001
    wire.widget._heard(None, {"type": "older", "viewer": "one", "before": 2001}, [])
    assert wire.widget.behind
    wire.widget.push()
    assert sorted(wire.seen("one")) == list(range(3001))


def test_a_reader_that_skipped_ahead_sends_its_new_rows_in_place_of_the_old():
    wire = Wire(LogBook(1))
    apply(wire.widget._reading.log, lines("old"))
    wire.hello("one")
    wire.widget.push()
    wire.widget._reading.log = LogBook(1, begin=Begin(500, {}, 500, 2**32))
    apply(wire.widget._reading.log, lines("new"))
    wire.widget.push()
    assert wire.seen("one") == {500: "new"}


def test_a_feed_ends_with_the_job(tell):
    story = tell("running")
    finals = []
    reading = Reading(story.folder)
    feed = Feed(reading, lambda *, final: finals.append(final), pytest.fail)
    feed.start()
    wait_for(lambda: reading.book.count("loss") > 100, what="points")
    story.t = time.time()
    story.complete()
    assert feed.finish(30)
    assert finals[-1] is True
    assert finals.count(True) == 1
    assert reading.view.state.value == "completed"
