"""Two streams in one log come apart again, whatever the pieces in which the log is read."""

from hypothesis import given, settings
from hypothesis import strategies as st

from distdl_jupyter.clusters.azureml.node.log_mux import LogMux, Splitter, mark

NONCE = "0123456789abcdef"
_BEGIN = b"\x1e" + NONCE.encode()
_TEXT = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [b"line\n", b"\x1e", b"\x1f", _BEGIN, _BEGIN[:9], b"\x1e0123 {}\n", _BEGIN + b' {"type":"metric"}\n']
    ),
)
_SAID = st.lists(st.tuples(st.sampled_from(["out", "err"]), _TEXT.filter(lambda one: mark(NONCE, "")[:-1] not in one)))


def read(log, cuts):
    splitter, pieces = Splitter(NONCE), []
    for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True):
        pieces += splitter.feed(log[start:end])
    return pieces, splitter


@settings(max_examples=300, deadline=None)
@given(_SAID, st.data())
def test_what_was_mixed_comes_apart(said, data):
    mixer = LogMux(NONCE, 3)
    log = b"a shell's word\n" + mixer.head + b"".join(mixer.said(*one) for one in said) + mixer.end("{}") + b"after"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=8)))
    pieces, _ = read(log, cuts)
    assert [piece.word for piece in pieces if piece.word] == ["rank 3", "end {}"]
    for stream in ("out", "err"):
        found = b"".join(piece.content for piece in pieces if piece.stream == stream)
        assert found == b"".join(content for name, content in said if name == stream)
    assert b"".join(piece.content for piece in pieces if not piece.stream) == b"a shell's word\nafter"


def test_a_mark_that_never_ends_is_text():
    log = LogMux(NONCE, 0).head + mark(NONCE, "x")[:-1] + b"y" * 9000
    pieces, _ = read(log, [])
    assert b"".join(piece.content for piece in pieces).endswith(b"y" * 9000)


def test_a_log_stays_readable_and_a_stream_that_goes_on_costs_nothing():
    mixer = LogMux(NONCE, 0)
    assert mixer.said("out", b"one\n") + mixer.said("out", b"two\n") == b"one\ntwo\n"
    assert mixer.said("err", b"oops\n").endswith(b"err\x1foops\n")
