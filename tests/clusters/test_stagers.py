"""The program that brings data to a node: whole lines are heard, its end is, and a user's Ctrl+C does not reach it."""

import os
import sys
from contextlib import suppress

import pytest

from distdl_jupyter.clusters.stagers import LocalStager, Stager


class Piped(Stager):
    """A stager that is only its two pipes."""

    def __init__(self):
        out, self.says = os.pipe()
        err, self.complains = os.pipe()
        super().__init__(0, "here", out, err)

    def write(self, line):
        os.write(self.says, line)

    def end(self):
        for fd in (self.out, self.err, self.says, self.complains):
            with suppress(OSError):
                os.close(fd)


@pytest.fixture
def piped():
    stager = Piped()
    yield stager
    stager.end()


def test_lines_are_heard_whole_and_the_end_is_told_from_silence(piped):
    assert piped.lines() == []
    piped.write(b'{"a": 1}\n{"b"')
    assert piped.lines() == [b'{"a": 1}']
    piped.write(b": 2}\n")
    assert piped.lines() == [b'{"b": 2}']
    os.close(piped.says)
    assert piped.lines() is None


def test_one_on_this_machine_is_a_session_of_its_own_and_is_gone_when_it_has_ended():
    stager = LocalStager(0, "here", sys.executable, dict(os.environ))
    pid = stager._process.pid
    assert os.getsid(pid) == pid
    stager.end()
    assert stager._process.returncode is not None
    stager.write(b"too late\n")
