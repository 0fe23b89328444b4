"""What the magics of one kernel remember: defaults of ``%dist_config``, the newest job, and the ranks that they use.

Errors of this package are shown as one line: the frames of the magic are of no use to a user.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobNotFound, show_as
from distdl_jupyter.core.humanize import plural, short_id
from distdl_jupyter.form.arguments import HelpRequested, with_flags

if TYPE_CHECKING:
    from distdl_jupyter.jobs.client import Job
    from distdl_jupyter.ranks import Ranks


class CurrentRanks:
    """The persistent ranks that the magics of one kernel use.

    Those that it started or was attached to, else those that are still running from before, such as from before the
    kernel was restarted. Ranks belong to no kernel: nothing here ends them.
    """

    def __init__(self) -> None:
        self._chosen: Ranks | None = None

    def choose(self, ranks: Ranks) -> Ranks:
        """Use these from now on."""
        self._chosen = ranks
        return ranks

    def own(self) -> Ranks | None:
        """Return the ranks of this kernel if they are running."""
        return self._chosen if self._chosen is not None and self._chosen.state() != "ended" else None

    def find(self) -> Ranks | None:
        """Return the kernel's own ranks, else the newest of the user's, else None."""
        if (own := self.own()) is not None:
            return own
        from distdl_jupyter import ranks

        found = ranks.current()
        return None if found is None or found.state() == "ended" else found

    def ended(self) -> str:
        """Return how the kernel's own ranks ended, "" when they did not."""
        state = self._chosen.state() if self._chosen is not None else None
        return state.reason if state == "ended" else ""

    def get(self) -> Ranks:
        """Return the ranks to use, the kernel's own even if they have ended. Raises JobNotFound.

        A message says so when ranks from before are used.
        """
        if self._chosen is not None:
            return self._chosen
        found = self.find()
        if found is None:
            raise JobNotFound("No ranks are running.", code="no-ranks", hint="Start two with: %dist_ranks start -p 2")
        say(
            f"Using {plural(found.size, 'rank')} started earlier ({short_id(found.id)}). Variables in their "
            "namespaces are kept."
        )
        return self.choose(found)


class Session:
    """The state of one kernel."""

    def __init__(self, ip: Any) -> None:
        self.ip = ip
        self.defaults: dict[str, Any] = {}
        self.ranks = CurrentRanks()
        self.newest = ""

    def started(self, job: Job) -> None:
        """Remember the newest job."""
        self.newest = job.id

    def job(self, job_id: str | None = None) -> Job:
        """Return the job with this id (or its last part); without one the newest, first of this kernel, then of all.

        Raises JobNotFound.
        """
        from distdl_jupyter.jobs import client

        return client.attach(job_id or self.newest or None)

    def is_interactive(self) -> bool:
        """Return whether a person runs this cell on a page or in a terminal and sees later output.

        nbclient, which runs cells for papermill and nbconvert, tells the kernel that there is no standard input.
        """
        kernel = getattr(self.ip, "kernel", None)
        asked = kernel.get_parent().get("content", {}) if kernel is not None else {}
        return bool(asked.get("allow_stdin", True))

    def keep(self, name: str, value: object) -> None:
        """Put a value into the notebook's namespace."""
        self.ip.push({name: value})


def as_magic(
    name: str, run: Callable[..., Any], text: str, help_: Callable[[], str] | None = None
) -> Callable[..., Any]:
    """Return the function to register with IPython, with ``text``, or what ``help_`` returns, as its help."""

    def magic(*line_and_cell: str) -> Any:
        with short_errors():
            return run(*line_and_cell)

    magic.__name__, magic.__doc__ = name, text
    if help_ is not None:
        magic.getdoc = help_  # type: ignore[attr-defined]
    return magic


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


def identifier(name: str | None) -> str | None:
    """Return the name of a variable. Raises InvalidSpec for what cannot be one."""
    if name is not None and not name.isidentifier():
        raise InvalidSpec(f"--out must be a variable name, not {name!r}.", code="out-name-invalid", field="out")
    return name


def say(text: str) -> None:
    """Print a line of output."""
    print(text, flush=True)  # noqa: T201 - a cell's output
