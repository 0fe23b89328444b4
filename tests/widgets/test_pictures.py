"""What a panel answers about pictures, and how a saved notebook keeps them."""

import base64
import json

import pytest

from distdl_jupyter.html import job as saved
from distdl_jupyter.jobs.client import Job
from distdl_jupyter.jobs.reader import PageReader
from distdl_jupyter.widgets.job import JobPanel
from distdl_jupyter.widgets.output import newest_pictures
from distdl_jupyter.widgets.widget import answer
from tests.html.test_job import ATTRIBUTES, TAGS, Reader
from tests.widgets import recorded
from tests.worker.test_pictures import jpeg, png


@pytest.fixture
def story(distdl_home):
    story = recorded.tell("running")
    yield story
    story.close()


def page_of(story):
    seen = PageReader(story.folder)
    view = seen.catch_up()
    shown = newest_pictures(story.folder.path, view)
    given = (seen.view, seen.book, seen.log, seen.spec, "")
    return saved.html(*given, shown), saved.text(*given)


def test_a_saved_notebook_keeps_pictures_as_data_of_images(story):
    recorded.show(story, png(64, 48), ranks=(1, 0))
    recorded.show(story, jpeg(6, 4))
    html, plain = page_of(story)
    page = Reader(html)
    assert page.tags <= TAGS
    assert {name for name, _ in page.attributes} <= ATTRIBUTES
    sources = [value for name, value in page.attributes if name == "src" and "svg" not in value]
    assert [base64.b64decode(one.partition(",")[2]) for one in sources] == [png(64, 48), jpeg(6, 4)]
    assert [one.partition(",")[0] for one in sources] == ["data:image/png;base64", "data:image/jpeg;base64"]
    assert "picture 1, ranks 0, 1, " in page.text
    assert "[picture 2: 6×4]" in page.text
    assert "2 pictures" in plain.splitlines()


def test_of_many_pictures_a_notebook_keeps_the_newest(story):
    for width in (1, 2, 3):
        recorded.show(story, png(width, 1, bytes(600_000)))
    (story.folder.path / "pictures/3.png").write_text("torn")
    recorded.show(story, png(4, 1))
    html, _ = page_of(story)
    assert "The last 2 pictures of 4." in Reader(html).text
    recorded.show(story, png(5, 1, bytes(900_000)))
    html, _ = page_of(story)
    assert len(html) < 60_000 + 4 / 3 * 1_000_000
    assert "The last 2 pictures of 5." in Reader(html).text


def test_a_page_is_given_a_picture_and_nothing_else(story):
    recorded.show(story, png(64, 48))
    shown = JobPanel(Job(story.folder))
    told = answer(shown.calls, {"ask": "picture", "given": {"number": 1}})["value"]
    assert base64.b64decode(told.removeprefix("data:image/png;base64,")) == png(64, 48)
    (story.folder.path / "pictures/2.png").write_text("<svg onload='alert(1)'/>")
    for number in (2, 0, -1, None, "1", "../1"):
        assert json.dumps(answer(shown.calls, {"ask": "picture", "given": {"number": number}})["error"]["message"])
    shown.close()
