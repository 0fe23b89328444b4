"""Clusters that break the contract, each in one way; ranks are real processes of this machine.

``tests.plugin.install`` puts a copy of this file into a package of its own, so it imports nothing of the tests.
"""

import contextlib
import dataclasses
import os
import signal

from distdl_jupyter.clusters.local import LocalCluster


class Twice(LocalCluster):
    """Reports every exit twice."""

    name = "twice"

    def start(self, *args):
        run = super().start(*args)
        poll = run.poll
        run.poll = lambda: [one for exit_ in poll() for one in (exit_, exit_)]
        return run


class Mixed(LocalCluster):
    """Exchanges the output of its two ranks."""

    name = "mixed"

    def start(self, *args):
        run = super().start(*args)
        run._streams = [dataclasses.replace(one, rank=1 - one.rank) for one in run._streams]
        return run


class Careless(LocalCluster):
    """Ends ranks, but not the processes that they have started."""

    name = "careless"

    def start(self, *args):
        run = super().start(*args)
        pids, alive = {start.pid for start in run.list_starts()}, run.list_alive

        def kill(_name):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        run.signal = kill
        run.list_alive = lambda: [pid for pid in alive() if pid in pids]
        return run


class Blind(LocalCluster):
    """Finds nothing of a job that has no supervisor."""

    name = "blind"

    def sweep(self, job_id, handle):
        return []


POINTS = {"clusters": {kind.name: kind.__name__ for kind in (Twice, Mixed, Careless, Blind)}}
