"""How a saved notebook keeps pictures."""

import base64

import pytest

from distdl_jupyter.jobs.output import make_mime_bundle
from distdl_jupyter.jobs.reader import PageReader
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
    seen.catch_up()
    return make_mime_bundle(seen).values()


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
    assert "picture 1, ranks 0 and 1, " in page.text
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
