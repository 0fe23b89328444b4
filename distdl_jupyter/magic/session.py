"""What the magics of one kernel remember: the defaults set with ``%dist_config`` and the newest job started here.

Errors of this package are shown as one line: the frames of the magic hold nothing that a user can mend.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import DistDLError, InvalidSpec, show_as
from distdl_jupyter.form.arguments import HelpRequested, with_flags
from distdl_jupyter.magic.current_ranks import CurrentRanks

if TYPE_CHECKING:
    from distdl_jupyter.jobs.client import Job


class Session:
    """The state of one kernel."""

    def __init__(self, ip: Any) -> None:
        self.ip = ip
        self.defaults: dict[str, Any] = {}
        self.ranks = CurrentRanks()
        self._newest = ""

    def started(self, job: Job) -> None:
        """Remember the newest job."""
        self._newest = job.id

    def job(self, job_id: str | None = None) -> Job:
        """Return the job with this id (or its last part); without one the newest, first of this kernel, then of all.

        Raises JobNotFound.
        """
        from distdl_jupyter.jobs import client

        return client.attach(job_id or self._newest or None)

    def somebody_looks(self) -> bool:
        """Say whether this cell was run by somebody before a page or a terminal, who sees what comes later.

        nbclient runs cells for papermill, nbconvert and the like; it tells the kernel that nobody can be asked.
        """
        kernel = getattr(self.ip, "kernel", None)
        asked = kernel.get_parent().get("content", {}) if kernel is not None else {}
        return bool(asked.get("allow_stdin", True))

    def keep(self, name: str, value: object) -> None:
        """Put a value into the notebook's namespace."""
        self.ip.push({name: value})


@contextlib.contextmanager
def short_errors() -> Iterator[None]:
    """Let IPython show errors of this package as one line, and a cell's syntax error with its place only."""
    try:
        yield
    except HelpRequested as request:
        sys.stdout.write(f"{request.text}\n")
    except DistDLError as error:
        if "_render_traceback_" not in vars(type(error)):  # what it has of its own tells more
            show_as(error, [f"{type(error).__name__}: {with_flags(str(error))}"])
        raise
    except KeyboardInterrupt as interrupt:
        if not interrupt.args:
            show_as(interrupt, ["KeyboardInterrupt"])
        raise
    except SyntaxError as error:
        shortened = InvalidSpec(
            f"Line {error.lineno} of the cell is not valid Python: {error.msg}.", code="cell-syntax", field="cell"
        )
        show_as(shortened, "".join(traceback.format_exception_only(error)).splitlines())
        raise shortened from None
