"""Settings of a user for messages, telemetry and experiment trackers, and the start of the processes that use them.

The address for messages and that of a tracking server are secrets. Keys and connection strings of telemetry stay in the
environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NoReturn, TextIO

import msgspec

from distdl_jupyter.core import tracking
from distdl_jupyter.core.user_settings import SettingsFile

#: The names of ``%dist_config monitoring`` and ``%dist_config tracking``.
MONITORING = ("enabled", "address", "notify")
TRACKING = ("track", "mlflow", "artifacts")
#: Events that send a message, as ``core.alerts.Kind``.
KINDS = "end,failure,stall,nan,rule"


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings by their names.

    ``enabled`` exports ended jobs to OpenTelemetry, ``address`` names the service for messages, ``notify`` the events
    that send one, ``track`` the trackers of jobs that set none, ``mlflow`` the address of MLflow.
    """

    enabled: bool = False
    address: str = ""
    notify: Annotated[str, msgspec.Meta(pattern=f"^(({KINDS.replace(',', '|')})(,(?=.)|$))+$")] = KINDS
    track: str = ""
    mlflow: Annotated[str, msgspec.Meta(pattern=r"^\S*$")] = ""
    artifacts: Literal["outputs", "all", "none"] = "outputs"


FILE = SettingsFile(
    name="distdl_monitoring.json",
    type=Settings,
    allowed={
        "enabled": "true or false",
        "notify": f"some of {KINDS}",
        "mlflow": "an address without spaces, for example https://tracking.example or sqlite:////home/me/mlflow.db",
        "artifacts": "outputs, all or none",
    },
    secrets="Keys, tokens and destinations of telemetry are set in the environment of Jupyter.",
)
read = FILE.read


def change(names: Sequence[str] = (*MONITORING, *TRACKING), /, **changes: Any) -> Settings:
    """Change some settings of ``names`` and return them all; an empty value restores a default. Raises InvalidSpec.

    An ``address`` is not checked here: ``messages.configure`` does.
    """
    if "track" in changes:
        changes["track"] = tracking.check(changes["track"], "track")
    if "notify" in changes:
        changes["notify"] = str(changes["notify"] or "").replace(" ", "")
    return FILE.write(FILE.changed(changes, "monitoring" if names == MONITORING else "tracking", names))


def start_process(
    module: str, *arguments: str, log: int, input_: Any = None, detached: bool = False
) -> subprocess.Popen[bytes]:
    """Start a module of this package, with ``input_`` as JSON on its standard input. Raises OSError.

    It outlives this process, and is in the session of the supervisor but in no process group of the job. ``detached``
    gives it its own session, which the end of a terminal does not reach. A thread waits for it: no zombie is left.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", f"{__package__}.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "DISTDL_JOB_ID"},
        process_group=None if detached else 0,
        start_new_session=detached,
    )
    threading.Thread(target=process.wait, name=f"wait-{process.pid}", daemon=True).start()
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(json.dumps(input_).encode())
    return process


def private_log() -> TextIO:
    """Return standard output, and let libraries, whose messages may quote an address, write nowhere."""
    log = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    return log


def finish(log: TextIO, text: str, status: int = 0) -> NoReturn:
    """Write a line and exit; threads of libraries are not waited for."""
    log.write(f"{text}\n")
    log.flush()
    os._exit(status)
