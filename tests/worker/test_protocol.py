"""Reports are found whatever text stands around them, and text is never lost or taken for a report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.worker import channel

NONCE = "5f0c7d1e9ab2"
texts = st.text().map(lambda text: text.encode(errors="surrogatepass").replace(b"\n", b" "))
imitations = st.sampled_from([
    b"\x1e", b"\x1e5f0c", b"\x1e5f0c7d1e9ab2", b"\x1e5f0c7d1e9ab2 ", b"\x1e5f0c7d1e9ab2 {", b"\x1e5f0c7d1e9ab2 {}",
    b'\x1eother {"type":"metric"}', b"\x1e5f0c7d1e9ab2 [1]", b'\x1e5f0c7d1e9ab2 {"type":"metric","step":NaN}',
    b'\x1e5f0c7d1e9ab2 {"type":7}', b"\xff\xfe", b"\r",
])  # fmt: skip
noise = st.lists(st.one_of(texts, imitations)).map(b"".join)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)
reports = st.dictionaries(st.text(), values, max_size=4).map(lambda fields: fields | {"type": "metric"})


@given(st.lists(st.one_of(noise.map(lambda text: (text, None)), st.tuples(noise, reports)), max_size=6))
def test_a_stream_of_lines_keeps_every_report_and_every_byte_of_text(parts):
    stream = b"".join(text + (b"\n" if report is None else channel.encode(NONCE, report)) for text, report in parts)
    found = [channel.split_line(line, NONCE) for line in stream.split(b"\n")[:-1]]
    assert found == parts


def test_a_report_is_strict_json():
    with pytest.raises(ValueError, match="not JSON compliant"):
        channel.encode(NONCE, {"type": "metric", "step": float("nan")})


def test_a_terminal_s_line_end_is_tolerated():
    line = channel.encode(NONCE, {"type": "hello"})[:-1] + b"\r"
    assert channel.split_line(line, NONCE) == (b"", {"type": "hello"})


def test_hostile_nesting_is_text():
    line = b"\x1e" + NONCE.encode() + b" " + b'{"type":' + b"[" * 200_000
    assert channel.split_line(line, NONCE) == (line, None)
