"""What pages are told over their WebSockets while real writers write."""

import json
import math
import threading
import time

import pytest

from distdl_jupyter import attach, panel
from distdl_jupyter.core import log as job_log
from distdl_jupyter.jobs.reader import JobReader, PageReader
from distdl_jupyter.live import job as live
from distdl_jupyter.live import subscriber
from distdl_jupyter.views.job_page import make_log_row as wire
from tests.conftest import wait_for
from tests.server.listening import Page, apply, connect, listening, subscribe, told
from tests.server.running import QUICK, serve
from tests.widgets import recorded

pytestmark = pytest.mark.timeout(600)


def everything(id_, mark=0):
    return {id_: {"log": {"mark": mark}, "curves": [{}]}}


def kept(job):
    """The rows of the whole log, folded here."""
    reading = PageReader(job.folder, tail=live.MAX_LOG_ROWS)
    reading.catch_up()
    return {one.n: json.loads(json.dumps(wire(one))) for one in reading.log.rows}


def test_a_page_is_told_everything_first_and_then_what_changes(quick, story):
    story.train(40)
    with listening(quick.url, jobs=True, clusters=True, job=everything(story.id)) as page:
        (hello,) = page.until_told("hello")
        assert page.messages[0] == hello
        (jobs,) = page.until_told("jobs")[:1]
        assert (jobs["whole"], [row["id"] for row in jobs["rows"]]) == (True, [story.id])
        (clusters,) = page.until_told("clusters")[:1]
        assert [one["name"] for one in clusters["clusters"]] == ["local"]
        (job,) = page.until_told("job")[:1]
        assert (job["id"], job["card"]["state"], len(job["ranks"])) == (story.id, "running", 4)
        (log,) = page.until_told("log")[:1]
        assert log["whole"]
        assert page.open[0][4].startswith("3%|")
        (curve,) = page.until_told("curve")[:1]
        assert (curve["metric"], curve["band"]["count"], curve["requested"]) == ("loss", 40, "")

        story.train(80)
        page.until(lambda p: p.of("curve")[-1]["band"]["count"] == 80, "the longer curve")
        page.until(lambda p: p.of("job")[-1]["card"]["step"] == 80, "the later step")
        page.until(lambda p: p.rows == kept(story), "the later rows")
        assert not [one for one in page.of("log")[1:] if one["whole"]]

        story.train(recorded.STEPS)
        story.complete()
        page.until(lambda p: p.of("job")[-1]["card"]["state"] == "completed", "the end")
        page.until(lambda p: p.of("jobs")[-1]["rows"][0]["state"] == "completed", "the end in the list")
        assert not page.of("jobs")[-1]["whole"]
        page.until(lambda p: p.rows == kept(story), "the last rows")


def test_an_ended_job_is_told_once(quick):
    ended = recorded.tell("completed")
    ended.close()
    with listening(quick.url, job=everything(ended.id)) as page:
        page.until_told("alive", many=3)
        assert sorted(m["type"] for m in page.messages if m["type"] != "alive") == ["curve", "hello", "job", "log"]
        assert page.rows == kept(ended)


def test_messages_come_at_a_measured_pace(quick, story):
    with listening(quick.url, job=everything(story.id)) as page:
        page.until_told("log")
        began, before = time.monotonic(), len(page.messages)
        while time.monotonic() < began + 3:
            story.t = time.time()
            story.train(story.step + 4, 0.0)
            time.sleep(0.01)
        page.until(lambda p: p.of("job")[-1]["card"]["step"] == story.step, "the last step")
        took = time.monotonic() - began
        told = page.messages[before:]
    for type_, most in (("job", 4), ("log", 13), ("curve", 2)):
        assert sum(m["type"] == type_ for m in told) <= most * took + 2, type_


def test_the_clock_goes_along_every_few_seconds_and_nothing_else(quick, story):
    with listening(quick.url, job={story.id: {}}) as page:
        first, second = page.until_told("job", many=2)[:2]
        assert second["card"]["now"] > first["card"]["now"] + subscriber._MAX_AGE_SECONDS - 0.5
        assert second["key"] == first["key"]
        assert len(page.of("job")) < 4


def test_a_page_goes_on_where_it_was_after_the_server_was_started_again(root, story):
    story.train(200)
    with serve(root, traits=QUICK) as server:
        page = Page(server.url, {"job": everything(story.id)})
        page.until(lambda p: p.rows == kept(story), "all rows")
        before = page.of("hello")[0]["server_id"]
    assert page.ended.wait(30), "a server that stops lets its pages go"
    page.close()
    rows, mark = dict(page.rows), page.mark
    story.train(400)
    state = page.of("job")[-1]
    with serve(root, traits=QUICK) as server, listening(server.url, job=everything(story.id, mark)) as again:
        again.until_told("log")
        again.until(lambda p: p.mark > mark, "what came meanwhile")
        for message in again.of("log"):
            assert not message["whole"]
            touched = {row[0] for row in message["rows"]}
            assert not [n for n in touched if rows.get(n) in message["rows"]], "told twice"
            apply(message, rows)
        assert rows == kept(story)
        assert again.of("hello")[0]["server_id"] != before
        assert again.of("job")[0]["key"] != state["key"]


@pytest.mark.parametrize("mark", [10**9, 0])
def test_a_mark_from_elsewhere_begins_anew(quick, story, mark):
    story.train(100)
    with listening(quick.url, job=everything(story.id, mark)) as page:
        assert page.until_told("log")[0]["whole"]
        assert page.rows == kept(story)


def known(job, curve, log):
    """What a page asks of a job, once it has been told so much."""
    return {job["id"]: {"log": {"mark": log["mark"]}, "curves": [{"key": curve["key"]}], "key": job["key"]}}


def test_nothing_is_told_twice_to_who_gives_the_keys_back(quick, story):
    story.train(100)
    first = told(
        quick.url, "jobs", "clusters", "job", "log", "curve", jobs=True, clusters=True, job=everything(story.id)
    )
    keys = {"jobs_key": first["jobs"]["key"], "clusters_key": first["clusters"]["key"]}
    again = known(first["job"], first["curve"], first["log"])
    with listening(quick.url, jobs=True, clusters=True, job=again, **keys) as page:
        page.until_told("alive", many=2)
        assert {m["type"] for m in page.messages} <= {"hello", "alive", "job", "clusters"}, "the clock; an idle node"
        story.train(104)
        page.until_told("log")
        page.until_told("curve")


def test_another_subscription_takes_the_place_of_the_last_and_goes_on_where_it_was(quick, story):
    ended = recorded.tell("completed")
    ended.close()
    story.train(300)
    with listening(quick.url, job=everything(story.id)) as page:
        page.until(lambda p: p.rows == kept(story), "all rows")
        page.until_told("curve")
        job, curve, log = (page.of(kind)[-1] for kind in ("job", "curve", "log"))
        page.subscribe(jobs=True, job={**known(job, curve, log), ended.id: {}})
        page.until_told("hello", many=2)
        page.until_told("job", id=ended.id)
        page.until_told("jobs")
        story.train(320)
        page.until(lambda p: p.rows == kept(story), "the later rows")
        assert [m["whole"] for m in page.of("log")].count(True) == 1
        page.until(lambda p: p.of("curve")[-1]["band"]["count"] == 320, "the longer curve")
        page.subscribe(jobs=True)
        page.until_told("hello", many=3)
        before = len(page.messages)
        story.train(360)
        page.until_told("alive", many=len(page.of("alive")) + 2)
        assert {m["type"] for m in page.messages[before:]} <= {"jobs", "alive"}, "of jobs nothing is asked any more"
    wait_for(lambda: not quick.extension.feeds.pages, what="the place is free")


def test_a_page_that_breaks_off_without_a_word_frees_its_place(quick):
    connection = connect(quick.url)
    subscribe(connection, jobs=True)
    wait_for(lambda: quick.extension.feeds.pages, what="the connection")
    connection.shutdown()
    wait_for(lambda: not quick.extension.feeds.pages, what="the place is free")


@pytest.mark.full
def test_a_page_that_does_not_read_is_not_queued_for_and_disturbs_nobody(quick, story, monkeypatch):
    """Its socket fills up; the server keeps at most one unsent message for it, and others are told as ever."""
    monkeypatch.setattr(live, "MAX_LAG_ROWS", 1_000_000)  # also on a busy machine nobody begins anew
    slow = connect(quick.url, buffer=4096)
    subscribe(slow, job=everything(story.id))
    try:
        with listening(quick.url, job=everything(story.id)) as page:
            page.until_told("log")
            for number in range(60):
                story.line(0, "\n".join(f"{number}.{k} {'x' * 120}" for k in range(300)))
                time.sleep(0.05)
            page.until(lambda p: p.texts and p.texts[-1].startswith("59.299"), "the last line")
            assert page.rows == kept(story)
        wait_for(lambda: len(quick.extension.feeds.pages) == 1, what="only the slow page is left")
        (page,) = quick.extension.feeds.pages
        assert 0 < len(page.ws_connection.stream._write_buffer) < 4_000_000
        # When it reads on, it is told the rest, and nothing twice.
        rows, end = {}, max(kept(story))
        while message := json.loads(slow.recv()):
            if message["type"] == "log":
                apply(message, rows)
                if rows and max(rows) == end:
                    break
        assert rows == kept(story)
    finally:
        slow.shutdown()
    wait_for(lambda: not quick.extension.feeds.pages, what="the place is free")


def test_a_deleted_job_is_gone_and_an_unknown_one_never_was(quick):
    ended = recorded.tell("failed")
    ended.close()
    nobody = "20200101-000000-aaaaa"
    hostile = ("../../etc", "a/b", "", "x" * 300, "20261121-024912-k3f9x/..")
    with listening(quick.url, jobs=True, job=everything(ended.id) | {one: {} for one in (nobody, *hostile)}) as page:
        page.until(lambda p: {m["id"] for m in p.of("gone")} == {nobody, *hostile}, "those that are not")
        page.until_told("log", id=ended.id)
        quick.delete(f"/jobs/{ended.id}")
        page.until_told("gone", id=ended.id)
        page.until(lambda p: ended.id in p.of("jobs")[-1]["removed"], "it leaves the list")
        page.until_told("alive", many=len(page.of("alive")) + 2)
        assert len(page.of("gone")) == 2 + len(hostile), "each is said once"


def test_a_page_and_the_panel_of_a_notebook_cause_one_reader(quick, story, monkeypatch):
    story.train(100)
    rows = kept(story)
    readers, read = set(), JobReader.read_once
    monkeypatch.setattr(JobReader, "read_once", lambda self, *args: readers.add(self) or read(self, *args))
    shown, subscription = panel(attach(story.id)), everything(story.id)
    try:
        # The view of the panel in JupyterLab subscribes as a page does.
        with listening(quick.url, job=subscription) as page, listening(quick.url, job=subscription) as view:
            for each in (page, view):
                each.until(lambda p: p.rows == rows, "all rows")
    finally:
        shown.close()
    assert len(readers) == 1


def count_read(reads):
    """Return how many bytes of a job's events and of its log were read."""
    return [sum(after[at] - before[at] for before, after in reads) for at in (0, 1)]


def test_twenty_pages_read_a_job_once(quick, story, monkeypatch):
    reads, original = [], PageReader.step

    def counted(self):
        before = (self.cursor, self.window.cursor)
        moved = original(self)
        if moved and threading.current_thread() is not threading.main_thread():  # kept() reads too
            reads.append((before, (self.cursor, self.window.cursor)))
        return moved

    monkeypatch.setattr(PageReader, "step", counted)
    story.train(100)
    pages = [Page(quick.url, {"jobs": True, "job": everything(story.id)}) for _ in range(20)]
    try:
        for page in pages:
            page.until(lambda p: p.rows == kept(story), "all rows")
        for step in range(110, 200, 10):
            story.train(step)
            time.sleep(0.1)
        rows = kept(story)
        for page in pages:
            page.until(lambda p: p.rows == rows, "all rows")
        sizes = [file.stat().st_size for file in (story.folder.events, story.folder.log)]
        wait_for(lambda: count_read(reads) >= sizes)
        assert count_read(reads) == sizes
    finally:
        for page in pages:
            page.close()
    wait_for(lambda: not quick.extension.feeds.pages, what="all places are free")


def test_pages_of_a_flood_are_told_the_newest_lines_and_every_metric(quick, monkeypatch):
    """A reader that falls behind skips lines, never states or metrics; what it skipped can be asked for."""
    monkeypatch.setattr(job_log, "MAX_BACKLOG_BYTES", 32 * 1024)
    monkeypatch.setattr(job_log, "CHUNK_BYTES", 16 * 1024)
    flood = recorded.begin(60)
    flood.set_up()
    with listening(quick.url, job=everything(flood.id)) as page:
        page.until_told("log")
        for number in range(60):
            flood.line(0, "\n".join(f"line {number * 1000 + k}" for k in range(1000)), after=0.01)
            flood.event("metric", rank=0, step=number, values={"loss": 1 / (number + 1)})
        page.until(lambda p: p.rows and p.texts[-1] == "line 59999", "the newest line")
        page.until(lambda p: p.of("curve") and p.of("curve")[-1]["band"]["count"] == 60, "every point")
        told = page.of("log")
        assert any(message["whole"] for message in told[1:]), "it skipped ahead"
        assert told[-1]["total"] == 60_000 + 6 + 1
        held = {n: row for n, row in page.rows.items() if n >= told[-1]["first"]}
    while older := quick.get(f"/jobs/{flood.id}/log", before=min(held), limit=10_000)["rows"]:
        held |= {row[0]: row for row in older}
    texts = [held[n][4] for n in sorted(held) if held[n][4].startswith("line ")]
    assert texts == [f"line {number}" for number in range(60_000)]
    of_rank = quick.get(f"/jobs/{flood.id}/log", rank=0, limit=50)["rows"]
    assert of_rank == [held[n] for n in sorted(held) if "0" in held[n][6]][-50:]
    flood.complete()
    flood.close()


def test_the_last_lines_of_a_flood_are_told_although_the_job_has_ended_before_they_are_read(quick, monkeypatch):
    """The end is read before the log: nobody may take it for the end of the log."""
    monkeypatch.setattr(live, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(job_log, "CHUNK_BYTES", 64 * 1024)
    flood = recorded.begin(60)
    flood.set_up()
    with listening(quick.url, job=everything(flood.id)) as page:
        page.until_told("log")
        for number in range(40):
            flood.line(0, "\n".join(f"line {number * 1000 + k}" for k in range(1000)), after=0.01)
        flood.complete()
        page.until(lambda p: p.rows and p.texts[-1] == "4 ranks exited with code 0", "the last line")
    flood.close()


def test_a_page_far_behind_begins_anew_and_one_a_little_behind_is_told_all(quick, story, monkeypatch):
    monkeypatch.setattr(live, "MAX_LAG_ROWS", 400)
    monkeypatch.setattr(live, "_MAX_ROWS", 100)
    story.line(0, "\n".join(f"line {k}" for k in range(300)))
    first = told(quick.url, "log", job=everything(story.id))
    mark = first["log"]["mark"]
    story.line(0, "\n".join(f"more {k}" for k in range(500)))  # as many as may be behind
    with listening(quick.url, job=everything(story.id, mark)) as page:
        apply(first["log"], page.rows)
        page.until(lambda p: p.rows == kept(story), "the rest in pieces")
        assert len(page.of("log")) == 5
        assert not any(m["whole"] for m in page.of("log"))
    story.line(0, "\n".join(f"much {k}" for k in range(1500)))
    with listening(quick.url, job=everything(story.id, mark)) as page:
        page.until(lambda p: p.of("log") and p.of("log")[-1]["whole"], "a new beginning")
        assert len(page.of("log")[-1]["rows"]) == live.SKIP_TO_ROWS


HOSTILE = ["<script>alert(1)</script>", "\x1b[31mred\x1b[0m", "\u202egnp.exe", "\ud800 half", "tab\tnul\x00",
           "日本 👩‍🚀",
           "x" * 64_000, '"},{"type":"gone"}', "\u2028\u2029", "</pre>&lt;"]  # fmt: skip


def test_hostile_text_travels_as_text_in_one_line_each(quick, story):
    for text in HOSTILE:
        story.line(0, text)
    story.event("metric", rank=0, step=1, values={"<b>loss</b>": math.nan, "loss": math.inf})
    story.event("metric", rank=0, step=2, values={"<b>loss</b>": -math.inf, "loss": 1.0})
    story.event("note", level="warning", text="<img src=x onerror=alert(1)>", code="")
    with listening(quick.url, jobs=True, job=everything(story.id)) as page:
        page.until(lambda p: p.rows == kept(story), "all rows")
        page.until_told("curve")
        page.until_told("jobs")
    assert HOSTILE[0] in page.texts
    assert "red" in page.texts
    assert HOSTILE[5] in page.texts
    assert not [text for text in page.texts if "\x1b" in text or "\u202e" in text or "\x00" in text]
    json.dumps(page.messages, allow_nan=False)


def test_a_subscription_that_makes_no_sense_is_refused_with_what_is_wrong(quick):
    for wanted, field in (
        ({"jobs": 1}, "jobs"), ({"job": []}, "job"), ({"job": {"x": {"log": {"mark": "q"}}}}, "mark"),
        ({"job": {"x": {"curves": [{"mode": "pie"}]}}}, "mode"), ({"nonsense": 1}, "nonsense"),
        ({"job": {str(k): {} for k in range(500)}}, "job"), ({"jobs_key": None}, "jobs_key"), ("no JSON", ""),
        (b"\xff\x00", ""), ([], ""),
    ):  # fmt: skip
        connection = connect(quick.url)
        data = wanted if isinstance(wanted, str | bytes) else json.dumps(wanted)
        (connection.send_binary if isinstance(data, bytes) else connection.send)(data)
        refused = next(m for m in iter(lambda c=connection: json.loads(c.recv()), None) if m["type"] == "refused")
        assert refused["error"]["field"] == field, wanted
        assert refused["error"]["message"].endswith(".")
        code, _ = connection.recv_data()
        assert code == 8, "the connection ends"
        connection.shutdown()
    wait_for(lambda: not quick.extension.feeds.pages, what="all places are free")
    for key in ("x", " ", "9" * 5000, "\u0663"):
        assert told(quick.url, "jobs", jobs=True, jobs_key=key)["jobs"]["whole"]


def test_the_server_stops_with_a_page_that_does_not_read(root, story):
    with serve(root, traits=QUICK) as server:
        slow = connect(server.url, buffer=4096)
        subscribe(slow, job=everything(story.id))
        for _ in range(30):
            story.line(0, "\n".join("y" * 200 for _ in range(200)))
        wait_for(lambda: server.extension.feeds.pages, what="the connection")
    slow.shutdown()


def test_what_nobody_watches_is_read_no_more_and_forgotten_later(root, story):
    with serve(root, traits={**QUICK, "linger_seconds": 1.0}) as server:
        kept_now = server.extension.feeds._feeds
        with listening(server.url, jobs=True, clusters=True, job=everything(story.id)) as page:
            page.until_told("log")
            assert len(kept_now) == 3
        wait_for(lambda: not kept_now, what="everything is forgotten")
