"""Settings of a user for messages, telemetry and experiment trackers, and the start of the processes that use them.

The file ``distdl_monitoring.json`` in the user's Jupyter configuration folder has mode 0600. The address for messages
and that of a tracking server are secrets. Keys and connection strings of telemetry stay in the environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TextIO

import msgspec

from distdl_jupyter.core import atomic_write, tracking
from distdl_jupyter.core.aliases import unknown
from distdl_jupyter.core.errors import DistDLError, InvalidSpec

FILE = "distdl_monitoring.json"
#: The names of ``%dist_config monitoring`` and ``%dist_config tracking``.
MONITORING = ("enabled", "address", "notify")
TRACKING = ("track", "mlflow", "experiment", "metrics", "artifacts", "wandb", "wandb_project")
#: Events that send a message, as ``core.alerts.Kind``.
KINDS = "end,failure,stall,nan,rule"
_ALLOWED = {
    "enabled": "true or false",
    "notify": f"some of {KINDS}",
    "mlflow": "an address without spaces, for example https://tracking.example or sqlite:////home/me/mlflow.db",
    "metrics": "mean, ranks or both",
    "artifacts": "outputs, all or none",
    "wandb": "online or offline",
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings by their names.

    ``enabled`` exports ended jobs to OpenTelemetry, ``address`` names the service for messages, ``notify`` the events
    that send one, ``track`` the trackers of jobs that set none, ``experiment`` the experiment for new MLflow runs.
    """

    enabled: bool = False
    address: str = ""
    notify: Annotated[str, msgspec.Meta(pattern=f"^(({KINDS.replace(',', '|')})(,(?=.)|$))+$")] = KINDS
    track: str = ""
    mlflow: Annotated[str, msgspec.Meta(pattern=r"^\S*$")] = ""
    experiment: str = "distdl_jupyter"
    metrics: Literal["mean", "ranks", "both"] = "mean"
    artifacts: Literal["outputs", "all", "none"] = "outputs"
    wandb: Literal["online", "offline"] = "online"
    wandb_project: str = "distdl_jupyter"


def file() -> Path:
    """Return the path of the settings."""
    from jupyter_core.paths import jupyter_config_dir

    return Path(jupyter_config_dir()) / FILE


def read() -> Settings:
    """Return the settings, the defaults if there is no file. Raises DistDLError if it is broken."""
    try:
        return msgspec.json.decode(file().read_bytes(), type=Settings)
    except FileNotFoundError:
        return Settings()
    except (OSError, ValueError) as error:
        raise DistDLError(
            f"Cannot read the settings in {file()} ({type(error).__name__}).",
            code="settings-unreadable",
            hint="Correct or delete that file.",
        ) from None


def change(names: Sequence[str] = (*MONITORING, *TRACKING), /, **changes: Any) -> Settings:
    """Change some settings of ``names`` and return them all; an empty value restores a default. Raises InvalidSpec.

    An ``address`` is not checked here: ``messages.configure`` does.
    """
    for name in changes:
        if name not in names:
            text = unknown(name, names, "setting", "for monitoring" if names == MONITORING else "for tracking")
            hint = "Keys, tokens and destinations of telemetry are set in the environment of Jupyter."
            raise InvalidSpec(text, code="setting-unknown", field=name, hint=hint)
    values = msgspec.to_builtins(read()) | {name: str(value or "").strip() for name, value in changes.items()}
    if "track" in changes:
        values["track"] = tracking.check(changes["track"], "track") or ""
    values["notify"] = values.get("notify", KINDS).replace(" ", "")
    try:
        settings = msgspec.convert({name: value for name, value in values.items() if value}, Settings, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition(".")[2].rstrip("`")
        message = f"The value of {name} must be {_ALLOWED[name]}."
        raise InvalidSpec(message, code="setting-invalid", field=name) from None
    atomic_write.write(file(), msgspec.to_builtins(settings))
    return settings


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
