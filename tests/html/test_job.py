"""The static page: what it says in each state, that hostile text stays text, that it is small whatever the job did."""

import base64
import dataclasses
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distdl_jupyter.core.spec import CodeSource
from distdl_jupyter.core.view import Restart
from distdl_jupyter.html import job as saved
from tests.selection import few_or_all
from tests.widgets.stories import BEGUN, NOT_LAUNCHED, STORIES, event, fold, line, spec_of, training

TAGS = {
    "div", "span", "table", "thead", "tbody", "tr", "th", "td", "img", "details", "summary", "svg", "circle", "path",
}  # fmt: skip
DRAWING = {"viewbox", "fill", "stroke", "stroke-width", "stroke-linecap", "stroke-dasharray", "aria-hidden", "opacity"}
ATTRIBUTES = {"style", "src", "alt", "width", "height", "cx", "cy", "r", "d"} | DRAWING
HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">&amp;\'";}]]>--><style>*{color:red}</style>'


class Reader(HTMLParser):
    """Takes a page apart: tags, attributes, text; complains about what does not close."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.said, self.open = set(), [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.extend(attrs)
        if tag != "img":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.extend(attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said.append(data)

    def handle_decl(self, decl):
        raise AssertionError(decl)

    handle_comment = handle_pi = unknown_decl = handle_decl

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.said))

    def pictures(self):
        sources = [value for name, value in self.attributes if name == "src"]
        return [base64.b64decode(source.removeprefix("data:image/svg+xml;base64,")) for source in sources]


def page_of(name, result="", **changes):
    spec = spec_of(**changes)
    return saved.render_html(*fold(spec, STORIES[name]()), spec, result)


def check(page):
    assert len(page.encode()) <= 60_000
    reader = Reader(page)
    assert reader.tags <= TAGS
    assert {name for name, _ in reader.attributes} <= ATTRIBUTES
    styles = "".join(value or "" for name, value in reader.attributes if name == "style")
    assert "url(" not in styles
    assert not re.search(r"script|alert|color:red", styles)
    for picture in reader.pictures():
        tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(picture).iter()}
        assert tags <= {"svg", "path", "text", "circle", "rect"}
    return reader


@pytest.mark.parametrize("name", STORIES)
def test_every_state_has_a_safe_small_page(name):
    reader = check(page_of(name))
    states = {"not_launched": "Failed", "killed": "Failed", "silent": "Running"}
    assert states.get(name, name.capitalize()) in reader.text
    assert "digits 20261121-024912-k3f9" in reader.text
    view = fold(spec_of(), STORIES[name]())[0]
    assert ("Live again with %dist_attach 20261121-024912-k3f9" in reader.text) is view.state.ended
    assert ("This page may be out of date: attach('k3f9') shows the job now." in reader.text) is not view.state.ended


def test_a_completed_job():
    reader = check(page_of("completed", "{'test_accuracy': 0.978}"))
    for part in (
        "cell [7] · lab-3 · 2 × 2 = 4 processes · horovod-gloo · 1 min 19 s",
        "Final metricsmeanlowest (rank)highest (rank)loss0.0770.072 (1)0.083 (2)accuracy0.9770.975 (2)0.979 (1)lr0.040",
        "Result of rank 0: {'test_accuracy': 0.978}",
        "test accuracy 0.978 on 360 images",
        "4 ranks exited with code 0",
        ", last 4 of 109 log lines. Live again",
    ):
        assert part in reader.text, part
    alternative = dict(reader.attributes)["alt"]
    assert re.fullmatch(
        r"Curve of loss over [\d,]+ steps: from 2\.\d\d to 0\.077, lowest 0\.0\d+, highest 2\.\d\d", alternative
    )
    assert len(reader.pictures()) == 1
    assert len(page_of("completed")) < 20_000


def test_a_failed_job():
    page = page_of("failed")
    reader = check(page)
    for part in (
        "Rank 2 of 4 failed first, ",
        "KeyError: 'label'",
        "On node-b (pid 48213, GPU 0), in cell [7], line 11. The keys of batch are image and target.",
        "ran 26 s · stopped at step 312 of 1,200",
        "Cell [7] in quickstart.ipynb",
        '➜ 11 loss = F.cross_entropy(model(batch["image"]), batch["label"])',
        "Values at line 11step 312batch Batch, keys image, target",
        "3 ranks ended because of it ranks 0 and 1: HorovodInternalError after 0.6 s; "
        "rank 3: ended by SIGTERM after 2.1 s",
        "opening shards/shard-2.npz (360 images)",
    ):
        assert part in reader.text, part
    assert page.count("<details") == 1
    assert reader.text.count("➜") == 1


def test_what_is_known_of_a_kill_and_of_a_start_that_failed():
    assert "Rank 1 of 4 failed first, " in Reader(page_of("killed")).text
    assert "The kernel's out-of-memory killer ended a process" in Reader(page_of("killed")).text
    said = Reader(page_of("not_launched")).text
    assert "The job failed, " in said
    assert NOT_LAUNCHED in said


def test_a_job_that_still_runs():
    said = Reader(page_of("running")).text
    assert "62 %, step 744 of 1,200" in said
    assert "Metrics so far" in said
    assert re.search(r"Submitted \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, shown as of \d\d:\d\d:\d\d\.", said)
    assert "This page may be out of date: attach('k3f9') shows the job now." in said
    assert "744 redraws" in said
    said = Reader(page_of("silent")).text
    assert "err UserWarning" in said
    assert "all Horovod 0.28.1 gloo, torch 2.13.0×4 ranks" in said


def test_a_job_that_sets_up_is_stopped_or_lost():
    assert "Rendezvous: waiting for rank 3." in Reader(page_of("starting")).text
    assert "INT sent, 1 of 4 ranks still running." in Reader(page_of("canceling")).text
    assert "Canceled at 62 %, step 744 of 1,200." in Reader(page_of("canceled")).text
    said = Reader(page_of("lost")).text
    assert re.search(r"Last event at \d\d:\d\d:\d\d\. The supervisor ended without a result\.", said)


def test_names_between_backticks_are_code_in_every_sentence():
    spec, says = spec_of(), "Horovod is missing. Run `distdl install horovod`."
    view, *others = fold(spec, STORIES["lost"]())
    view = dataclasses.replace(view, reason=says, restarts=[Restart(view.created, says), Restart(view.created, says)])
    page = saved.render_html(view, *others, spec)
    assert "`" not in page
    assert page.count("Run <span style=") == page.count("distdl install horovod") == 2


def hostile_events(text):
    """A job in which every word that a user can choose is ``text``."""
    yield from training(40)
    yield event(9, "metric", rank=0, step=8, values={text: 1.0})
    yield event(9, "metric", rank=1, step=16, values={text: 2.0})
    for number in range(6):
        yield line(10, number % 4, f"{text}\n{text}", "err" if number % 2 else "out")
    yield line(10, 0, text, "err", redraws=9)
    yield event(10, "progress", rank=0, done=4, total=9, unit=text)
    yield event(10, "phase", phase="train", detail=text)
    yield event(10, "note", level="warning", text=text, code=text)
    yield event(10, "rank", rank=2, status="started", host=text)


def hostile_end(text, state):
    frames = [
        {
            "file": text,
            "line": 3,
            "function": text,
            "kind": kind,
            "label": text,
            "cell": cell,
            "source": [[n, text] for n in (1, 2, 3)],
        }
        for kind, cell in (("worker", None), ("cell", 7), ("library", None), ("user", None)) * 20
    ]
    error = {"type": text, "message": text, "traceback": text, "time": BEGUN + 11, "hint": f"{text} `{text}`"}
    error |= {"values": [[text, text]] * 12, "frames": frames}
    yield event(11, "result", rank=2, ok=False, error=error)
    for rank in (0, 1, 3):
        yield event(12, "result", rank=rank, ok=False, error={**error, "time": BEGUN + 12 + rank})
    yield event(13, "state", state=state, reason=text)


@given(
    st.text(max_size=60) | st.sampled_from([HOSTILE, "\ud800", "\x00\x1b[31m", "`" * 30, "\u202e"]),
    st.sampled_from(["failed", "lost", "completed"]),
)
@example(HOSTILE, "failed")
@example(HOSTILE, "completed")
def test_hostile_text_stays_text(text, state):
    spec = spec_of(name=text or "x", compute_target=text, distributed_backend=text, source=CodeSource(notebook=text))
    view, book, log = fold(spec, [*hostile_events(text), *hostile_end(text, state)])
    page = saved.render_html(view, book, log, spec, text)
    check(page)
    plain = saved.render_text(view, book, spec, text)
    assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", plain) is None
    plain.encode()


#: Letters that take much room in a page, in bytes, escaped or coloured.
LETTERS = ['"', "𝕏", "\x1b[1m;", "あ"]  # noqa: RUF001


@pytest.mark.parametrize("letter", LETTERS)
def test_a_page_is_always_small(letter):
    long = letter * 5_000
    spec = spec_of(name=letter * 120, compute_target=long, node_count=40, process_count_per_node=8)
    many = (
        event(5, "metric", rank=rank, step=step, values={f"{long}{name}": step * 1.7 for name in range(30)})
        for rank in range(4)
        for step in range(few_or_all(30, 100))
    )
    view, book, log = fold(spec, [*many, *hostile_events(long), *hostile_end(long, "failed")])
    page = saved.render_html(view, book, log, spec, long)
    check(page)
    assert len(saved.render_text(view, book, spec, long)) < 12_000


def test_the_plain_text_of_a_completed_job():
    spec = spec_of()
    view, book, _ = fold(spec, STORIES["completed"]())
    lines = saved.render_text(view, book, spec, "{'test_accuracy': 0.978}").splitlines()
    assert lines[:2] == [
        "digits 20261121-024912-k3f9: Completed after 1 min 19 s",
        "cell [7], lab-3, 2 × 2 = 4 processes, horovod-gloo",
    ]
    assert re.fullmatch(r"loss      █[▁-█]{15}  0\.077  lowest 0\.072 \(rank 1\), highest 0\.083 \(rank 2\)", lines[2])
    assert lines[4] == f"lr        {' ' * 16}  0.040"
    assert lines[5:] == [
        "Result of rank 0: {'test_accuracy': 0.978}",
        "109 log lines",
        "Live again with %dist_attach 20261121-024912-k3f9",
    ]


def test_the_plain_text_of_a_failed_job():
    spec = spec_of()
    view, book, _ = fold(spec, STORIES["failed"]())
    said = saved.render_text(view, book, spec)
    assert "digits 20261121-024912-k3f9: Failed after 26 s\n" in said
    assert "horovod-gloo, stopped at step 312 of 1,200\nRank 2 of 4 failed first, " in said
    assert "On node-b (pid 48213, GPU 0), in cell [7], line 11.\n" in said
    assert "\nThe keys of `batch` are `image` and `target`.\n3 ranks ended" in said
