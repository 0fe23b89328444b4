"""Scaling studies over HTTP. All of it is ``scaling_study``'s; one that goes on has a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from distdl_jupyter import scaling_study
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.server.base import Handler, answers, checked_id, executes
from distdl_jupyter.views.schema import ScalingPanel

if TYPE_CHECKING:
    from distdl_jupyter.views.scaling import ScalingShown

#: Seconds in which a study that goes on has begun its next run, and between two looks.
_BEGIN, _LOOK = 60.0, 0.2


class ScalingById(Handler):
    """One scaling study."""

    @answers(ScalingPanel, refuses=(404,))
    async def get(self, id_: str) -> ScalingPanel:
        """Return the measurements so far, the bottleneck, a forecast, and the price of an epoch if it is known."""
        return await self.run_in_thread(lambda: scaling_study.find(checked_id(id_)).panel)


class ResumeScaling(Handler):
    """The request to go on with a scaling study."""

    @answers(ScalingPanel, status=201, refuses=(400, 404, 409, 502, 507))
    @executes
    async def post(self, id_: str) -> ScalingPanel:
        """Continue an interrupted study: measurements are kept, and missing runs are run."""
        return await self.slowly(lambda: _resumed(checked_id(id_)).panel)


def _resumed(id_: str) -> ScalingShown:
    """Let a process that outlives this server go on with a study; return that when its next run has begun."""
    known = {one.id for one in scaling_study.unfinished(id_).folders}
    command = [sys.executable, "-P", "-m", "distdl_jupyter.cli", "scale", "--resume", id_]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
                                   start_new_session=True)  # fmt: skip
        threading.Thread(target=process.wait, name=f"reap-{id_}", daemon=True).start()
        until = time.monotonic() + _BEGIN
        while not set(scaling_study.runs_of(id_)) - known:
            if process.poll() is not None or time.monotonic() > until:
                process.kill()
                said.seek(0)
                why = said.read().decode(errors="replace").strip()
                raise LaunchFailed(f"Scaling study {id_} is not running.", code="scaling-not-resumed", output=why)
            time.sleep(_LOOK)
    return scaling_study.find(id_)
