"""The end of a process is told when what it and its ranks have written was passed on, read by whom it may."""

import os
import selectors
import sys
import time

import pytest

from distdl_jupyter.node import frames
from distdl_jupyter.node.channels import Channels
from distdl_jupyter.node.children import Children, wanted
from distdl_jupyter.node.outbox import Outbox
from tests.node.driver import until


@pytest.fixture
def wire():
    """A reading end, the outbox that leads there, and channels."""
    reading, writing = os.pipe()
    outbox = Outbox(writing)
    with selectors.DefaultSelector() as selector:
        yield reading, outbox, Channels(selector, outbox)
    for fd in (reading, writing):
        os.close(fd)


def all_said(reading, outbox):
    """Return the bytes of each channel that leave the outbox."""
    reader, found = frames.Reader(greeting=False), {}
    while not outbox.empty:
        outbox.flush()
        for frame in reader.feed(os.read(reading, 1_000_000)):
            found[frame.channel] = found.get(frame.channel, b"") + frame.bytes
    return found


def start(children, code, **fields):
    command = {"process": 0, "argv": ["{python}", "-c", code], "out": 1, "err": 2, "environment": dict(os.environ)}
    return children.start([wanted({**command, **fields})])[0]


@pytest.fixture
def children(wire):
    if sys.platform != "linux":
        pytest.skip("the agent runs on Linux hosts")
    one = Children(wire[2])
    yield one
    for child in one.running():
        child.popen.kill()
    until(lambda: not one.running())


def test_nothing_that_was_written_before_the_exit_comes_after_it(wire, children):
    reading, outbox, channels = wire
    read, write = os.pipe()
    channels.add(read, 7)  # a rank's named pipe, of which the launcher's end says nothing
    os.write(write, b"the rank's last words")
    start(children, "print('launched')")
    until(lambda: not children.running())
    assert children.ended(time.monotonic(), full=False) == []  # nobody has read to the end
    assert [told["code"] for told in children.ended(time.monotonic() + 5, full=False)] == [0]
    assert all_said(reading, outbox) == {1: b"launched\n", 7: b"the rank's last words"}
    channels.end_all()
    os.close(write)


def test_while_the_reader_is_behind_a_process_with_unread_words_has_not_ended(wire, children):
    _, _, channels = wire
    start(children, "print('x')")
    until(lambda: not children.running())
    children.ended(time.monotonic(), full=True)
    assert children.ended(time.monotonic() + 100, full=True) == []
    assert children.draining
    assert len(children.ended(time.monotonic() + 100, full=False)) == 1
    assert not children.draining
    channels.end_all()
