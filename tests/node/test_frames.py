"""Frames come back whole for any cuts, and what is no frame is refused."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.node.channels import (
    CHUNK_BYTES,
    HANDSHAKE,
    MAX_BODY_BYTES,
    MAX_PREAMBLE_BYTES,
    Data,
    FrameReader,
    InvalidFrame,
    encode_data,
    encode_message,
)

parts = st.one_of(
    st.dictionaries(st.text(max_size=5).filter(lambda name: name != "type"), st.integers(), max_size=3),
    st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=40)),
)


@given(st.lists(parts, max_size=12), st.lists(st.integers(0, 10_000), max_size=8), st.text(max_size=20))
def test_frames_come_back_in_order_whatever_a_login_shell_says_first(sent, cuts, noise):
    wire = noise.encode(errors="replace") + HANDSHAKE
    for part in sent:
        wire += encode_message("note", fields=part) if isinstance(part, dict) else encode_data(*part)
    edges = [0, *sorted(cut % (len(wire) + 1) for cut in cuts), len(wire)]
    reader = FrameReader(expect_handshake=True)
    found = [frame for a, b in itertools.pairwise(edges) for frame in reader.feed(wire[a:b])]
    assert found == [{"type": "note", "fields": part} if isinstance(part, dict) else Data(*part) for part in sent]
    assert reader.has_handshake


def test_much_data_is_cut_into_pieces_that_belong_together():
    content = bytes(range(256)) * 1000
    found = FrameReader(expect_handshake=False).feed(encode_data(7, content))
    assert len(found) == -(-len(content) // CHUNK_BYTES)
    assert {frame.channel for frame in found} == {7}
    assert b"".join(frame.bytes for frame in found) == content


def test_what_came_in_place_of_the_handshake_can_be_shown():
    reader = FrameReader(expect_handshake=True)
    assert reader.feed(b"This account is currently not available.\n") == []
    assert not reader.has_handshake
    assert reader.preamble == b"This account is currently not available.\n"


@pytest.mark.parametrize(
    "wire",
    [
        b"X\0\0\0\1a",
        b"J" + (MAX_BODY_BYTES + 1).to_bytes(4, "big"),
        b"J\0\0\0\2[]",
        b"J\0\0\0\2{}",
        b"J\0\0\0\1{",
        b"D\0\0\0\1a",
    ],
)
def test_what_is_no_frame_is_refused(wire):
    with pytest.raises(InvalidFrame):
        FrameReader(expect_handshake=False).feed(wire)


def test_noise_before_the_handshake_is_bounded_and_searched_once():
    reader, began = FrameReader(expect_handshake=True), time.process_time()
    for _ in range(MAX_PREAMBLE_BYTES // 64):
        assert reader.feed(b"x" * 64) == []
    with pytest.raises(InvalidFrame):
        reader.feed(b"x" * 64)
    assert len(reader.preamble) == MAX_PREAMBLE_BYTES + 64
    assert time.process_time() - began < 1
