"""``python -u -P -m distdl_jupyter.warm ROOM``: the template of this interpreter; ROOM: see ``process_marker``.

Standard input holds one JSON object: the ``environment`` of the submitter in which modules are imported (here and not
in the process's own, because anybody of the user's sees that one), the ``job`` after whose start the work begins, and
when the template was ``made`` (epoch seconds).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DistDLError
from distdl_jupyter.core.events import read_all
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.warm import modules, template, template_files
from distdl_jupyter.warm.process_marker import Room

#: Seconds after which the imports begin even if the job that started the template does not run yet.
_LATEST = 20.0
#: States in which a job's ranks have begun to train, or nothing of it is left to disturb.
_BUSY = ("queued", "preparing", "starting")


def main() -> None:
    """Import, then serve until something ends the template."""
    room = Room()
    text = sys.stdin.read()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    order = json.loads(text)
    _take_environment(order["environment"])
    where = template_files.of()
    lock = template.only_one(where)
    if lock is None or order["made"] <= template.stopped(where):
        return
    job = JobFolder(Path(order["job"])) if order.get("job") else None
    if job is not None:
        _let_begin(job)
    _serve(template.Template(where, room, order["environment"]), job, text)


def _serve(own: template.Template, job: JobFolder | None, text: str) -> None:
    try:
        if job is not None:
            own.watch(job)
        own.prepare(_of_backend(job))
        own.serve()
    except template.Ended as ended:
        _say(f"The template exits: {ended}.")
    except modules.Unfit as unfit:
        _say(f"{unfit}, so it will not be preloaded again.")
        own.leave_out(unfit)
        own.close()
        _again(text)
    finally:
        own.close()


def _take_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update({**environment, **modules.NO_THREADS})


def _let_begin(job: JobFolder) -> None:
    """Wait until the job's ranks run, so that the imports do not take the cores from their start."""
    until = time.monotonic() + _LATEST
    while time.monotonic() < until and _state(job) in _BUSY:
        time.sleep(0.1)


def _state(job: JobFolder) -> str:
    with contextlib.suppress(OSError):
        states = [event["state"] for event in read_all(job.events)[0] if event["type"] == "state"]
        return str(states[-1]) if states else _BUSY[0]
    return ""


def _of_backend(job: JobFolder | None) -> tuple[str, ...]:
    if job is None:
        return ()
    with contextlib.suppress(DistDLError):
        spec = job.spec()
        backend, options = registry.backend(spec.distributed_backend, spec.backend_options)
        return tuple(backend.modules(options))
    return ()


def _again(text: str) -> None:
    """Begin anew as the same process: what an unfit module has started is gone with the old image."""
    with tempfile.TemporaryFile() as order:
        order.write(json.dumps({**json.loads(text), "job": ""}).encode())
        order.seek(0)
        os.dup2(order.fileno(), 0)
    own: Any = sys.orig_argv
    os.execve(sys.executable, own, _first_environment())  # noqa: S606 - the same program again


def _first_environment() -> dict[str, str]:
    """Return the environment of this process's own exec."""
    text = Path("/proc/self/environ").read_bytes()
    pairs = (os.fsdecode(line).partition("=") for line in text.split(b"\0") if line)
    return {name: value for name, _, value in pairs}


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


if __name__ == "__main__":
    main()
