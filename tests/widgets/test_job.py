"""The job panel without a browser: its traits, and what its pages are told and answered."""

import json
import time

import pytest

from distdl_jupyter import attach
from distdl_jupyter.core.series import SeriesBook
from distdl_jupyter.live.session import EVERYBODY
from distdl_jupyter.widgets.job import JobPanel, panel
from distdl_jupyter.widgets.widget import answer
from tests.conftest import wait_for
from tests.server.listening import apply
from tests.widgets import recorded

EVERYTHING = {"log": {"mark": 0}, "curves": [{}]}


@pytest.fixture
def tell():
    """Return a function that writes a recorded job into the test's own data directory."""
    with recorded.telling() as tell_:
        yield tell_


class Page:
    """A page of a panel: what it is sent, and the rows that it keeps."""

    def __init__(self, shown):
        self.shown, self.rows, self.settled = shown, {}, False
        self.messages, self.viewers = [], set()

    def take(self, content, buffers):
        if content["type"] != "told":
            return
        self.viewers.add(content["viewer"])
        self.settled = content["settled"]
        for buffer in buffers:
            message = json.loads(buffer)
            if message["type"] == "log":
                apply(message, self.rows)
            self.messages.append(message)

    def say(self, type_, viewer="one", **more):
        self.shown._handle_custom_msg({"type": type_, "viewer": viewer, **more}, [])

    def subscribe(self, number=1, viewer="one", **wanted):
        self.say("subscribe", viewer, subscription={"number": number, "job": {self.shown.job_id: wanted}})

    def of(self, type_):
        return [message for message in list(self.messages) if message["type"] == type_]


@pytest.fixture
def shown(monkeypatch):
    """Return a function that makes a panel with one page; its thread ends with the test."""
    pages = []

    def send(self, content, buffers=None):
        wait_for(lambda: pages and pages[-1].shown is not None, what="the page")
        pages[-1].take(content, buffers)

    def shown_(id_):
        pages.append(Page(None))
        pages[-1].shown = panel(attach(id_))
        return pages[-1]

    monkeypatch.setattr(JobPanel, "send", send)
    yield shown_
    for each in pages:
        thread = each.shown._session._thread
        each.shown.close()
        if thread is not None:
            thread.join(30)


def test_traits_say_where_the_job_stands_and_can_be_observed(tell, shown):
    story = tell("running")
    view = shown(story.id).shown
    wait_for(lambda: view.state, what="the state")
    assert (view.state, view.progress, view.failure) == ("running", 744 / 1200, None)
    assert list(view.metrics) == ["loss", "accuracy", "lr"]
    assert 0 < view.metrics["loss"] < 1
    seen = []
    view.observe(lambda change: seen.append(change["new"]), "progress")
    story.t = time.time()
    story.train(800, 0.0)
    wait_for(lambda: seen and seen[-1] == 792 / 1200, what="what came later")


def test_a_failure_is_a_trait(tell, shown):
    view = shown(tell("failed").id).shown
    wait_for(lambda: view.failure, what="the failure")
    assert (view.state, view.failure["rank"]) == ("failed", 2)
    assert "KeyError" in view.failure["error_type"]


def test_a_page_that_subscribes_is_told_everything_and_then_what_changes(tell, shown):
    story = tell("running")
    page = shown(story.id)
    page.subscribe(7, **EVERYTHING)
    wait_for(lambda: page.of("curve"), what="the curve")
    assert page.of("hello")[-1]["number"] == 7
    assert page.of("job")[-1]["card"]["state"] == "running"
    assert page.of("log")[-1]["whole"]
    assert page.of("curve")[-1]["summary"].startswith("Curve of loss over 740 steps: from 2.")
    before = len(page.of("log"))
    story.t = time.time()
    story.train(800, 0.0)
    wait_for(lambda: page.of("job")[-1]["card"]["done"] == 792, what="what came later")
    wait_for(lambda: page.of("curve")[-1]["table"][0][0] == "800", what="the newest step in the table")
    wait_for(lambda: page.of("log")[before:], what="new rows")
    assert not any(message["whole"] for message in page.of("log")[before:])
    wait_for(lambda: page.of("alive"), what="a sign of life")


def test_everybody_is_told_until_somebody_subscribes(tell, shown):
    """A page may not reach a busy kernel: it takes what it hears."""
    story = tell("running")
    page = shown(story.id)
    wait_for(lambda: page.of("curve"), what="the curve")
    assert page.viewers == {EVERYBODY}
    assert not page.of("hello")
    rows = dict(page.rows)
    assert rows
    page.subscribe()
    wait_for(lambda: "one" in page.viewers, what="the answer")
    page.viewers.clear()
    story.t = time.time()
    story.train(800, 0.0)
    wait_for(lambda: page.of("job")[-1]["card"]["done"] == 792, what="what came later")
    assert page.viewers == {"one"}
    page.say("leave")
    page.viewers.clear()
    story.train(840, 0.0)
    wait_for(lambda: page.shown.progress == 840 / 1200 or page.shown.progress > 0.68, what="the trait")
    assert not page.viewers


def test_of_an_ended_job_all_is_told_once_and_other_curves_when_they_are_asked_for(tell, shown):
    page = shown(tell("completed").id)
    page.subscribe(1, **EVERYTHING)
    wait_for(lambda: page.settled, what="the end")
    wait_for(lambda: page.shown._session._thread is None, what="the end of the thread")
    assert page.of("curve")[-1]["layout"]["yaxis"]["type"] == "linear"
    assert page.of("job")[-1]["card"]["result"] == "{'test_accuracy': 0.978}"
    assert len(page.of("curve")) == 1 or page.viewers == {EVERYBODY, "one"}
    page.subscribe(2, curves=[{"log": True}])
    wait_for(lambda: page.of("curve")[-1]["layout"]["yaxis"]["type"] == "log", what="the other curve")
    assert page.of("hello")[-1]["number"] == 2


def test_a_deleted_job_is_gone(tell, shown):
    story = tell("completed")
    page = shown(story.id)
    page.subscribe()
    wait_for(lambda: page.settled, what="the end")
    attach(story.id).remove()
    page.subscribe(2)
    wait_for(lambda: page.of("gone"), what="the message")


def test_what_a_page_asks_for_is_answered_in_a_thread(tell, shown, monkeypatch):
    page = shown(tell("completed").id)
    sent = []
    monkeypatch.setattr(JobPanel, "send", lambda self, content, buffers=None: sent.append(content))
    page.say("ask", id="a-1", ask="cancel", given={"now": False})
    wait_for(lambda: [one for one in sent if one["type"] == "answer"], what="the answer")
    (said,) = [one for one in sent if one["type"] == "answer"]
    assert said["id"] == "a-1"
    assert "so it cannot be canceled" in said["error"]["message"]
    assert "Unknown request" in answer(page.shown.calls, {"ask": "dance"})["error"]["message"]
    assert "TypeError" in answer(page.shown.calls, {"ask": "log", "given": {"nonsense": 1}})["error"]["message"]


def test_earlier_rows_are_there_when_they_are_asked_for(tell, shown):
    story = tell("running")
    story.line(0, "\n".join(f"line {number}" for number in range(3000)))
    page = shown(story.id)
    page.subscribe(1, **EVERYTHING)
    wait_for(lambda: page.rows, what="the newest rows")
    first = min(page.rows)
    assert first > 0
    found = answer(page.shown.calls, {"ask": "log", "given": {"before": first}})["value"]
    assert [row[0] for row in found["rows"]] == list(range(first))


def test_a_panel_whose_thread_breaks_says_so_in_the_kernels_log(tell, shown, monkeypatch, caplog):
    story = tell("running")
    monkeypatch.setattr(SeriesBook, "apply", lambda self, event: 1 / 0)
    shown(story.id)
    wait_for(lambda: "has stopped" in caplog.text, what="the sentence")
    assert story.id in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("wanted", [{"number": "x"}, {"number": 1, "job": []}, None, {"job": {"j": {"curves": 1}}}])
def test_a_subscription_that_makes_no_sense_changes_nothing(tell, shown, wanted):
    page = shown(tell("running").id)
    page.say("subscribe", "bad", subscription=wanted)
    page.subscribe()
    wait_for(lambda: "one" in page.viewers, what="the answer to the other")
