"""The log files of a run are read by ranges and split into the streams of ranks; other text is kept line by line."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distdl_jupyter.clusters.azureml.bootstrap import build_mark
from distdl_jupyter.clusters.azureml.run import LogFile, Logs
from distdl_jupyter.core.errors import AzureRefused

NONCE = "0123456789abcdef"
_BEGIN = b"\x1e" + NONCE.encode()
_TEXT = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b"line\n", b"\x1e", b"\x1f", _BEGIN[:9], _BEGIN + b' {"type":"metric"}\n']),
).filter(lambda text: build_mark(NONCE, "")[:-1] not in text)


class Workspace:
    """Files by their addresses, sent from the byte that is requested."""

    def __init__(self):
        self.files = {}

    def get_anonymous_client(self, _url):
        return self

    def send(self, _method, url, headers):
        begin = int(headers["Range"].removeprefix("bytes=").split("-")[0])
        content = self.files[url]
        if isinstance(content, int):
            raise AzureRefused("refused", status=content)
        if begin >= len(content):
            raise AzureRefused("nothing new", status=416)
        return SimpleNamespace(content=content[begin:], status_code=206)


@pytest.fixture
def workspace():
    return Workspace()


@pytest.fixture
def logs(workspace):
    logs = Logs(workspace, NONCE, 1)
    yield logs
    logs.close()


def unowned(logs):
    """Return the text outside of ranks' output so far."""
    return (logs.streams[0].source.take(65_536) or b"").decode()


def taken(stream):
    """Return the bytes of a stream so far."""
    return b"".join(iter(lambda: stream.source.take(65_536) or b"", b""))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["out", "err"]), _TEXT)), st.data())
def test_the_streams_of_a_rank_are_separated_wherever_the_file_is_cut(written, data):
    log, current = b"a shell's error\n" + build_mark(NONCE, "rank 3"), "out"
    for stream, text in written:
        log += (b"" if stream == current else build_mark(NONCE, stream)) + text
        current = stream
    log += build_mark(NONCE, 'end {"code": 0}') + b"after"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=8)))
    logs, file = Logs(None, NONCE, 4), LogFile("f")
    for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True):
        logs.feed(file, log[start:end])
    logs.feed(file, b"", is_last=True)
    other, *_, out, err = logs.streams
    assert (out.rank, err.rank) == (3, 3)
    for stream in (out, err):
        assert taken(stream) == b"".join(text for name, text in written if name == stream.name)
    assert taken(other) == b"[f]\na shell's error\nafter\n"
    assert logs.exits == {3: {"code": 0}}


def test_whole_lines_are_passed_on_and_the_rest_at_the_end(workspace, logs):
    logs.set_addresses({"azureml-logs/20_image_build_log.txt": "a"})
    workspace.files["a"] = b"step 1\nste"
    assert logs.advance()
    assert unowned(logs) == "[azureml-logs/20_image_build_log.txt]\nstep 1\n"
    assert not logs.advance()
    workspace.files["a"] += b"p 2"
    assert logs.advance()
    assert unowned(logs) == ""
    assert not logs.advance(is_last=True)
    assert unowned(logs) == "step 2\n"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_file_is_read_on_at_its_new_address(workspace, logs, status):
    logs.set_addresses({"a.txt": "old"})
    workspace.files["old"] = b"one\n"
    logs.advance()
    workspace.files["old"] = status
    assert not logs.advance()
    logs.set_addresses({"a.txt": "new"})
    workspace.files["new"] = b"one\ntwo\n"
    assert logs.advance()
    assert unowned(logs) == "[a.txt]\none\ntwo\n"


def test_other_refusals_are_raised(workspace, logs):
    logs.set_addresses({"a.txt": "a"})
    workspace.files["a"] = 500
    with pytest.raises(AzureRefused):
        logs.advance()


def test_another_supervisor_passes_on_the_rest_of_ranks_and_no_other_text(workspace):
    logs = Logs(workspace, NONCE, 1, {(0, "out"): 7})
    workspace.files |= {"a": b"step 1\n", "b": build_mark(NONCE, "rank 0") + b"line 1\nline 2\n"}
    logs.set_addresses({"a.txt": "a", "b.txt": "b"})
    logs.advance()
    assert unowned(logs) == ""
    assert logs.streams[1].source.take(100) == b"line 2\n"
    logs.close()


def test_a_stream_of_a_rank_goes_on_behind_a_mark_at_its_begin(workspace, logs):
    logs.set_addresses({"user_logs/std_log_process_0.txt": "a"})
    workspace.files["a"] = b"".join(build_mark(NONCE, label) for label in ("rank 0", "err", "out")) + b"step 1\n"
    logs.advance()
    out, err = (stream.source for stream in logs.streams[1:])
    assert (out.take(100), err.take(100)) == (b"step 1\n", None)
