"""``python -m distdl_jupyter.monitoring.viewer TRACKER SOCKET [FOLDER]``: the web pages of TensorBoard or MLflow.

They are served on a Unix socket that only its user can open, for the Jupyter server, which asks who somebody is before
it passes a request on (``server.tracking``). Whoever else is logged in on this machine finds no port. The process ends
with the one that started it, and when no request has come for ``IDLE`` seconds.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from distdl_jupyter.core import redact, tracking
from distdl_jupyter.monitoring import settings, trackers

#: Seconds without a request after which the pages are no longer served.
IDLE = 1800.0
_EVERY = 2.0
_last = time.monotonic()


def _touch() -> None:
    global _last
    _last = time.monotonic()


def _end_when_alone() -> None:
    parent = os.getppid()
    while os.getppid() == parent and time.monotonic() - _last < IDLE:
        time.sleep(_EVERY)
    os._exit(0)


def log_folder(job: Path) -> Path:
    """Return the folder that TensorBoard shows of a job: all of it where ranks have written event files too."""
    if next(job.glob("outputs/**/events.out.tfevents.*"), None) is not None:
        return job
    return tracking.folder_of(job, "tensorboard")


def _tensorboard(socket: str, folder: str) -> None:
    trackers.keep_tensorboard_light()
    from tensorboard import default, program
    from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

    class Quiet(WSGIRequestHandler):
        def log(self, *_: Any) -> None:
            _touch()

    class Server(ThreadedWSGIServer, program.TensorBoardServer):  # type: ignore[misc]  # without types
        daemon_threads = True

        def __init__(self, application: Any, flags: Any) -> None:
            ThreadedWSGIServer.__init__(self, f"unix://{socket}", 0, application, Quiet)

        def get_url(self) -> str:
            return "http://localhost/"

        def print_serving_message(self) -> None:
            """Nobody reads it."""

    board = program.TensorBoard(plugins=default.get_plugins(), server_class=Server)
    # Its loader in another language would listen on a port of its own.
    board.configure(argv=["tensorboard", "--logdir", folder, "--load_fast", "false", "--reload_interval", "3"])
    # What main() does besides is to tell other users' programs of a port.
    board._make_server().serve_forever()  # noqa: SLF001


def _mlflow(socket: str) -> None:
    address = trackers.mlflow_address(settings.read())
    for name in ("_MLFLOW_SERVER_FILE_STORE", "_MLFLOW_SERVER_REGISTRY_STORE"):
        os.environ[name] = address
    os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = str(Path(trackers.local_store().removeprefix("sqlite:///")).parent)
    os.environ["_MLFLOW_SERVER_SERVE_ARTIFACTS"] = "false"
    import uvicorn
    from mlflow.server.fastapi_app import app

    @app.middleware("http")  # type: ignore[untyped-decorator]  # without types
    async def touch(request: Any, call_next: Any) -> Any:
        _touch()
        return await call_next(request)

    uvicorn.run(app, uds=socket, log_level="critical", access_log=False)


def main() -> None:
    """Serve until nobody asks any more."""
    os.environ.update(trackers.SILENCE)
    os.umask(0o077)
    threading.Thread(target=_end_when_alone, daemon=True).start()
    tracker, socket = sys.argv[1], sys.argv[2]
    try:
        if tracker == "tensorboard":
            _tensorboard(socket, sys.argv[3])
        else:
            _mlflow(socket)
    except Exception as error:  # noqa: BLE001 - into the log of Jupyter, and no restart
        sys.stderr.write(
            f"The pages of {tracker} could not be served: {type(error).__name__}: {redact.text(str(error))}\n"
        )
        os._exit(0)


if __name__ == "__main__":
    main()
