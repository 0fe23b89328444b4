import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdl_jupyter.worker.rank_socket import MAX_BODY_BYTES, ConnectionLost, MessageConnection, RankMessage

HEADERS = st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.booleans(), st.none()))


@given(st.lists(st.tuples(HEADERS, st.binary()), max_size=5))
def test_messages_come_out_as_they_went_in(messages):
    one, other = map(MessageConnection, socket.socketpair())
    received = []
    for header, body in messages:
        one.send(header, body)
        received.append(other.receive())
    assert not other.is_readable()
    one.close()
    other.close()
    assert received == [RankMessage(header, body) for header, body in messages]


def test_messages_may_come_in_pieces():
    raw, other = socket.socketpair()
    connection = MessageConnection(other)
    data = struct.pack("!i", 2) + b"{}" + struct.pack("!i", 3) + b"abc"
    for begin in range(len(data)):
        raw.sendall(data[begin : begin + 1])
    assert connection.receive() == RankMessage({}, b"abc")
    raw.close()
    connection.close()


@pytest.mark.parametrize("data", [b"\xff" * 12, b"\0\0\0\2[]\0\0\0\0", b"\0\0\0\2{\xff\0\0\0\0", b"\0\0\0\2{", b""])
def test_what_is_no_message_is_refused(data):
    raw, other = socket.socketpair()
    connection = MessageConnection(other)
    raw.sendall(data)
    raw.close()
    with pytest.raises(ConnectionLost):
        connection.receive()
    connection.close()


@pytest.mark.parametrize(
    ("body_length", "limits"),
    [
        (struct.pack("!i", 3), {"max_header_bytes": 1}),
        (struct.pack("!i", 3), {"max_body_bytes": 2}),
        (struct.pack("!iQ", -1, MAX_BODY_BYTES + 1), {}),
    ],
)
def test_a_message_beyond_all_bounds_is_refused_by_its_length(body_length, limits):
    raw, other = socket.socketpair()
    connection = MessageConnection(other)
    raw.sendall(struct.pack("!i", 2) + b"{}" + body_length)  # the body itself never comes
    with pytest.raises(ConnectionLost, match="message length"):
        connection.receive(**limits)
    raw.close()
    connection.close()
