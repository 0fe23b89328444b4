"""Clusters that break the contract, each in one way; ranks are real processes of this machine.

``tests.plugin.install`` puts a copy of this file into a package of its own, so it imports nothing of the tests.
"""

import contextlib
import dataclasses
import os
import signal
import threading
import time

from distdl_jupyter.clusters.base import Run, Stream
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


class Early(Cheat):
    """Tells the end of a rank before its last words can be read."""

    name = "early"

    class Changed(Around):
        def __init__(self, inner):
            super().__init__(inner)
            self.told, self.kept = False, []
            self.shown = tuple(self.late(one) for one in inner.streams)

        def late(self, stream):
            read, write = os.pipe()
            os.set_blocking(read, False)
            self.kept.append((stream.fd, write, bytearray()))
            return Stream(read, stream.rank, stream.name)

        def poll(self):
            exits = self.inner.poll()
            for fd, write, held in self.kept:
                with contextlib.suppress(BlockingIOError):
                    while data := os.read(fd, 65_536):
                        held.extend(data)
                if self.told:
                    sent = os.write(write, held[:32_768])
                    del held[:sent]
            self.told = self.told or bool(exits)
            return exits

        def close(self):
            for (_, write, _), stream in zip(self.kept, self.shown, strict=True):
                os.close(write)
                os.close(stream.fd)
            super().close()


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


class Messy(Cheat):
    """Leaves ranks running when the last word of the start is not wanted any more."""

    name = "messy"

    def start(self, spec, placement, plan, context):
        run = super().start(spec, placement, plan, context)
        try:
            context.report("start", "all ranks")
        except BaseException:
            threading.Thread(target=self.bury, args=(run, spec.process_count)).start()
            raise
        return run

    def bury(self, run, count):
        """Wait for what was left behind, so that this process has no children that nobody waits for."""
        while count:
            count -= len(run.poll())
            time.sleep(0.02)
        run.close()


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


POINTS = {"clusters": {kind.name: kind.__name__ for kind in (Twice, Mixed, Early, Careless, Messy, Blind, Heedless)}}
