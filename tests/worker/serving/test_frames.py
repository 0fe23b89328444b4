import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.worker.rank_socket import LONGEST_BODY, InvalidMessage, MessageReader, RankMessage, encode

HEADERS = st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.booleans(), st.none()))


def joined(*messages):
    return b"".join(piece for header, body in messages for piece in encode(header, body))


@given(st.lists(st.tuples(HEADERS, st.binary())), st.integers(1, 50))
def test_messages_come_out_as_they_went_in_however_they_are_cut(messages, size):
    data, reader, found = joined(*messages), MessageReader(), []
    for begin in range(0, len(data), size):
        found += reader.feed(data[begin : begin + size])
    assert found == [RankMessage(header, body) for header, body in messages]


@pytest.mark.parametrize("data", [b"\xff" * 12, b"\0\0\0\2" + b"\0" * 8 + b"[]", b"\0\0\0\2" + b"\0" * 8 + b"{\xff"])
def test_what_is_no_message_is_refused(data):
    with pytest.raises(InvalidMessage):
        MessageReader().feed(data)


def test_a_body_beyond_all_bounds_is_refused_by_its_length():
    head = b"\0\0\0\2" + (LONGEST_BODY + 1).to_bytes(8, "big")
    with pytest.raises(InvalidMessage, match="exceeds the limit"):
        MessageReader().feed(head)
