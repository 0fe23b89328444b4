"""Clusters that break the contract, each in one way; ranks are real processes of this machine.

``tests.plugin.install`` puts a copy of this file into a package of its own, so it imports nothing of the tests.
"""

import contextlib
import dataclasses
import os
import signal

from distdl_jupyter.clusters.base import Run
from distdl_jupyter.clusters.local import LocalCluster
from distdl_jupyter.core.errors import DataUnavailable


class Cheat(LocalCluster):
    """Starts as this machine does; ``Changed`` is the run that is given back."""

    Changed = None

    def start(self, spec, placement, plan, context):
        inner = super().start(spec, placement, plan, context)
        return self.Changed(inner) if self.Changed else inner


class Around(Run):
    def __init__(self, inner):
        self.inner = inner
        self.shown = inner.streams

    @property
    def streams(self):
        return self.shown

    def started(self):
        return self.inner.started()

    def poll(self):
        return self.inner.poll()

    def alive(self):
        return self.inner.alive()

    def signal(self, name):
        self.inner.signal(name)

    def handle(self):
        return self.inner.handle()

    def close(self):
        self.inner.close()


class Twice(Cheat):
    """Tells every end twice."""

    name = "twice"

    class Changed(Around):
        def poll(self):
            return [one for exit_ in self.inner.poll() for one in (exit_, exit_)]


class Mixed(Cheat):
    """Gives the words of one rank to another."""

    name = "mixed"

    class Changed(Around):
        def __init__(self, inner):
            super().__init__(inner)
            self.shown = tuple(dataclasses.replace(one, rank=1 - one.rank) for one in inner.streams)


class Careless(Cheat):
    """Ends ranks and leaves what they had started."""

    name = "careless"

    class Changed(Around):
        def signal(self, name):
            for start in self.inner.started():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(start.pid, signal.SIGKILL)

        def alive(self):
            started = {start.pid for start in self.inner.started()}
            return [pid for pid in self.inner.alive() if pid in started]


class Blind(Cheat):
    """Finds nothing of a job that has no supervisor."""

    name = "blind"

    def sweep(self, job_id, handle):
        return []


class Heedless(Cheat):
    """Lets ranks start where the data is not."""

    name = "heedless"

    def place(self, spec, ports, options, context):
        try:
            return super().place(spec, ports, options, context)
        except DataUnavailable:
            context.staging = None
            return super().place(spec, ports, options, context)


POINTS = {"clusters": {kind.name: kind.__name__ for kind in (Twice, Mixed, Careless, Blind, Heedless)}}
