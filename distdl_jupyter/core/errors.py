"""The errors of the package, and the findings of the checks before a job starts.

A finding is an error, which prevents the start, a warning, or an info, which is collapsed.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from distdl_jupyter.worker.secret_patterns import mask

_PACKAGE_PREFIX = f"{Path(__file__).parents[1]}{os.sep}"


class DistDLError(Exception):
    """Base class of all errors of this package.

    ``code`` is its stable name for programs and help links (default: the name of the class), ``message`` one sentence,
    ``hint`` the fix as another one, or "". Text that looks like a secret is masked, because errors quote their input.
    """

    code: str = "error"

    def __init_subclass__(cls) -> None:
        if cls.__base__ is DistDLError and "code" not in vars(cls):
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    def __init__(self, message: str, *, code: str = "", hint: str = "") -> None:
        super().__init__(mask(message))
        if code:
            self.code = code
        self.message = mask(message)
        self.hint = mask(hint)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()

    def _render_traceback_(self) -> list[str]:
        """Show only the user's frames in a notebook."""
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        lines: list[str] = []
        for frame in traceback.extract_tb(self.__traceback__)[1:]:  # the first is IPython's
            if frame.filename.startswith(_PACKAGE_PREFIX):
                break
            name = shell.compile.format_code_name(frame.filename) if shell is not None else None  # "Cell", "In[3]"
            file = " ".join(name) if name else frame.filename
            lines.append(f"{file}, line {frame.lineno}: {mask(frame.line or '')}")
        return [*lines, f"{type(self).__name__}: {self}"]

    def to_json(self) -> dict[str, str]:
        """Return ``type``, ``code``, ``message``, ``hint``, ``field`` and ``output``; a missing attribute is ""."""
        details = {name: getattr(self, name, "") for name in ("field", "output")}
        return {"type": type(self).__name__, "code": self.code, "message": self.message, "hint": self.hint, **details}


class InvalidSpec(DistDLError):
    """A value of the request is invalid; ``field`` names it."""

    def __init__(self, message: str, *, field: str = "", code: str = "", hint: str = "") -> None:
        super().__init__(message, code=code, hint=hint)
        self.field = mask(field)


class JobNotFound(DistDLError):
    """There is no job with this id."""


class JobNotRunning(DistDLError):
    """The job has ended, so the request cannot be carried out."""


class JobStillRunning(DistDLError):
    """The job has not ended, so the request cannot be carried out yet."""


class ResultUnavailable(DistDLError):
    """A value of a completed job is not available, because it could not be pickled or was deleted."""


class ClusterNotFound(DistDLError):
    """No cluster has this name."""


class ClusterRefused(DistDLError):
    """A cluster cannot be changed or removed now; the message says why."""


class PluginUnavailable(DistDLError):
    """A backend or cluster is not available here; the hint says how to install or configure it."""


class NotSignedIn(DistDLError):
    """No credential for Azure could be used; the hint says how to sign in."""


class AzureRefused(DistDLError):
    """Azure answered a request with an error. ``status`` is the HTTP status, ``azure_code`` Azure's own code."""

    def __init__(self, message: str, *, code: str = "", hint: str = "", status: int = 0, azure_code: str = "") -> None:
        super().__init__(message, code=code, hint=hint)
        self.status, self.azure_code = status, azure_code


class DataUnavailable(DistDLError):
    """A data source cannot be read, or outputs cannot be written to their location."""


class MessageNotSent(DistDLError):
    """A service did not accept a message; the error names the service but does not contain its address."""


class DiskRefused(DistDLError):
    """A required file cannot be read or written, for example because the disk is full or read-only."""


class LaunchFailed(DistDLError):
    """The ranks could not be started; ``output`` is the end of the launcher's output."""

    def __init__(self, message: str, *, code: str = "", hint: str = "", output: str = "") -> None:
        super().__init__(message, code=code, hint=hint)
        self.output = mask(output)

    def __str__(self) -> str:
        return "\n".join(part for part in (super().__str__(), self.output) if part)


class JobFailed(DistDLError):
    """The job failed; ``rank`` failed first (None: the job failed as a whole), and ``str()`` shows its traceback.

    Its process ended with ``exit_code`` or ``signal`` (a name such as ``"KILL"``). ``error`` is the exception as data
    (``type``, ``message``, ``frames``, ``values``). ``others`` has a line for each rank that ended as a consequence.
    """

    def __init__(
        self,
        message: str,
        *,
        job_id: str = "",
        rank: int | None = None,
        exit_code: int | None = None,
        signal: str | None = None,
        error: dict[str, Any] | None = None,
        traceback: str = "",
        others: tuple[str, ...] = (),
        code: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.job_id, self.rank = job_id, rank
        self.exit_code, self.signal = exit_code, signal
        self.error, self.traceback, self.others = error or {}, traceback, others

    def __str__(self) -> str:
        return "\n".join(filter(None, [super().__str__(), self.traceback.rstrip(), *self.others]))

    def _render_traceback_(self) -> list[str]:
        """Show only the remote traceback in a notebook."""
        return str(self).splitlines()


def show_as(error: BaseException, lines: list[str]) -> None:
    """Make IPython, which calls this method to render an exception, show an error as these lines."""
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]


def explain(interrupt: KeyboardInterrupt, text: str) -> None:
    """Set the message of an interrupt, which IPython shows instead of frames."""
    interrupt.args = (text,)
    show_as(interrupt, [text])


@contextlib.contextmanager
def explain_interrupt(describe: Callable[[], str]) -> Iterator[None]:
    """Explain a KeyboardInterrupt in the block: what is still running, how to stop it; the innermost text is shown."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not interrupt.args:
            explain(interrupt, describe())
        raise


Level = Literal["error", "warning", "info"]
LEVELS: tuple[Level, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: ``text`` describes it with numbers, ``remedy`` is the fix; ``code`` is for programs."""

    level: Level
    code: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: ``result`` is a one-line summary; ``code`` is its stable name for programs."""

    name: str
    result: str
    findings: tuple[Finding, ...] = ()
    code: str = ""

    @property
    def passed(self) -> bool:
        """Whether all findings are infos."""
        return all(finding.level == "info" for finding in self.findings)


@dataclass(frozen=True, slots=True)
class UndefinedName:
    """A name that is read but not defined in ``where`` ("the cell or the notebook"); ``location`` is the line.

    ``certain`` is true if every run reads it; ``similar`` are names with similar spelling.
    """

    name: str
    location: str
    where: str
    certain: bool
    similar: tuple[str, ...] = ()
