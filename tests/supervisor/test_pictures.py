"""Pictures that ranks report become files, events and lines of the log; partial and invalid ones are ignored."""

import base64
import os
import stat
import tempfile

import pytest

from distdl_jupyter.clusters.base import Stream
from distdl_jupyter.core.logfile import read_last_lines, split_lines
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import JobView
from distdl_jupyter.supervisor.log_reader import LineSplitter, RankReport
from distdl_jupyter.supervisor.recorder import EventRecorder
from distdl_jupyter.worker.channel import Channel
from tests.supervisor.test_recorder import spec
from tests.worker.test_pictures import jpeg, png
from tests.written import all_written

NONCE = "5f0c7d1e9ab2"
OUT = [Stream(-1, rank, "out") for rank in range(2)]


def parts(data, size=1000):
    text = base64.b64encode(data).decode()
    begins = range(0, len(text), size)
    return [{"type": "picture", "begin": at, "of": len(text), "data": text[at : at + size]} for at in begins]


def take(recorder, rank, *reports):
    recorder.take(OUT[rank], [RankReport(report) for report in reports])


def sent(data):
    """Return the bytes that a rank's channel writes for a picture."""
    with tempfile.TemporaryFile() as file:
        Channel(file.fileno(), NONCE, 0).send_picture(data)
        file.seek(0)
        return file.read()


def test_a_picture_is_kept_and_its_line_says_where(folder):
    data = png(640, 480, bytes(range(256)) * 100)
    recorder = EventRecorder(folder, spec())
    splitter = LineSplitter(NONCE)
    recorder.take(OUT[1], splitter.feed(b"before\n" + sent(data) + b"after\n"))
    recorder.close()
    assert folder.read_picture(1) == (data, "png")
    file = folder.path / "pictures" / "1.png"
    assert [stat.S_IMODE(one.stat().st_mode) for one in (file, file.parent)] == [0o600, 0o700]
    events = all_written(folder)
    assert [event["text"] for event in events if event["type"] == "log"] == ["before", "[picture 1: 640×480]", "after"]
    assert not any("iVBOR" in str(event) for event in events)
    for lines in (read_last_lines(folder.log, 3)[0], list(split_lines(events, folder.path))):
        assert [line.text for line in lines] == ["before", f"[picture 1: 640×480] {file}", "after"]
    view = JobView.from_spec(spec())
    for event in events:
        view.apply(event)
    (shown,) = view.pictures
    assert (shown.number, shown.form, shown.width, shown.height, shown.ranks) == (1, "png", 640, 480, [1])


def test_equal_pictures_of_ranks_are_one_also_for_a_supervisor_that_takes_over(folder):
    same, other = png(8, 8), jpeg(9, 9)
    recorder = EventRecorder(folder, spec())
    for rank in (0, 1):
        take(recorder, rank, *parts(same))
    recorder.close()
    recorder = EventRecorder(folder, spec())
    for event in all_written(folder):
        recorder.fold(event)
    take(recorder, 0, *parts(same))
    take(recorder, 0, *parts(other))
    assert [(one.number, one.ranks) for one in recorder.view.pictures] == [(1, [0, 1]), (2, [0])]
    assert sorted(one.name for one in (folder.path / "pictures").iterdir()) == ["1.png", "2.jpeg"]
    recorder.close()


@pytest.mark.parametrize(
    "reports",
    [
        parts(b"<svg onload=alert(1)>"),
        parts(png(9, 9))[1:] or [{"type": "picture", "begin": 5, "of": 9, "data": "abcd"}],
        [{"type": "picture", "begin": 0, "of": 4, "data": "a\N{LATIN SMALL LETTER E WITH ACUTE}=="}],
        [{"type": "picture", "begin": 0, "of": 5, "data": "abcde"}],
        [{"type": "picture", "begin": 0, "of": 3, "data": "abcd"}],
        [{"type": "picture", "begin": -1, "of": 4, "data": "abcd"}],
        [{"type": "picture", "begin": 0, "of": 1e9, "data": "abcd"}],
        [{"type": "picture", "begin": 0, "of": 4, "data": ""}],
        [{"type": "picture"}],
        parts(png(9, 9, bytes(2_000_000)), 1_000_000),
        parts(png(9, 9))[:0],
    ],
)
def test_what_is_no_whole_picture_changes_nothing(folder, reports):
    recorder = EventRecorder(folder, spec())
    for report in reports:
        take(recorder, 0, report)
    assert recorder.view.pictures == []
    take(recorder, 0, *parts(png(9, 9)))
    assert [one.number for one in recorder.view.pictures] == [1]
    recorder.close()


def test_parts_of_two_ranks_may_alternate_and_a_new_beginning_replaces_an_old_one(folder):
    recorder = EventRecorder(folder, spec())
    one, two = png(9, 9, bytes(range(256)) * 20), png(8, 8, bytes(range(256)) * 20)
    take(recorder, 0, *parts(one)[:3])
    for first, second in zip(parts(one), parts(two), strict=False):
        take(recorder, 0, first)
        take(recorder, 1, second)
    take(recorder, 0, *parts(one)[len(parts(two)) :])
    assert {folder.read_picture(number)[0] for number in (1, 2)} == {one, two}
    recorder.close()


def test_a_job_keeps_100_pictures_and_says_once_that_it_has_shown_more(folder):
    recorder = EventRecorder(folder, spec())
    for width in range(1, 104):
        take(recorder, width % 2, *parts(png(width, 1)))
    assert len(recorder.view.pictures) == len(list((folder.path / "pictures").iterdir())) == 100
    recorder.close()
    said = [event["text"] for event in all_written(folder) if event.get("stream") == "sys"]
    assert said == ["The job has shown 100 images; later ones are omitted."]


def test_a_folder_that_takes_no_pictures_is_told_and_the_job_goes_on(folder):
    (folder.path / "pictures").write_text("in the way")
    recorder = EventRecorder(folder, spec())
    for width in (1, 2):
        take(recorder, 0, *parts(png(width, 1)))
    recorder.close()
    said = [event["text"] for event in all_written(folder) if event["type"] == "log"]
    assert said == ["Images cannot be stored: File exists."]


def test_a_file_is_read_as_a_picture_only_when_it_is_one(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "secret.png").write_bytes(png(1, 1))
    (tmp_path / "pictures/1.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "pictures/2.png").write_text("<svg/>")
    (tmp_path / "pictures/3.png").write_bytes(jpeg(1, 1))
    os.mkfifo(tmp_path / "pictures/4.png")
    (tmp_path / "pictures/x.png").write_bytes(png(1, 1))
    assert [JobFolder(tmp_path).read_picture(number) for number in range(6)] == [None] * 6
