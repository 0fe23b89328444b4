"""The program that brings data to a node: whole lines are heard, its end is, and a user's Ctrl+C does not reach it."""

import os
import sys

from distdl_jupyter.clusters.stagers import LocalStager, Stager
from distdl_jupyter.node.channels import Inbox


class Fed(Stager):
    """A stager whose output the test writes."""

    def write(self, line):
        self.out.feed(line)

    def end(self):
        self.out.close()


def test_lines_are_heard_whole_and_the_end_is_told_from_silence():
    stager = Fed(0, "here", Inbox())
    assert stager.lines() == []
    stager.write(b'{"a": 1}\n{"b"')
    assert stager.lines() == [b'{"a": 1}']
    stager.write(b": 2}\n")
    assert stager.lines() == [b'{"b": 2}']
    stager.write(b"")
    assert stager.lines() is None


def test_one_on_this_machine_is_a_session_of_its_own_and_is_gone_when_it_has_ended():
    stager = LocalStager(0, "here", sys.executable, dict(os.environ))
    pid = stager._process.pid
    assert os.getsid(pid) == pid
    stager.end()
    assert stager._process.returncode is not None
    stager.write(b"too late\n")
