"""The state that the magics of one kernel share. Errors are shown as one line, because frames of magics do not help."""

from __future__ import annotations

import argparse
import contextlib
import traceback
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import DistDLError, InvalidSpec, show_as
from distdl_jupyter.form.arguments import Parser, to_flags

if TYPE_CHECKING:
    from distdl_jupyter.form.target import CodeInfo
    from distdl_jupyter.jobs.client import Job
    from distdl_jupyter.ranks import Ranks


class Session:
    """The state of one kernel: the options of ``%dist_config``, the id of its newest job, and its ranks."""

    def __init__(self, ip: Any) -> None:
        self.ip = ip
        self.defaults: dict[str, Any] = {}
        self.newest_job_id = ""
        self.ranks: Ranks | None = None
        #: The analysis of the cell that the launch form shows.
        self.form_cache: dict[Hashable, CodeInfo] = {}

    def find_job(self) -> Job:
        """Return the newest job of this kernel, else of the user. Raises JobNotFound."""
        from distdl_jupyter.jobs import client

        return client.attach(self.newest_job_id or None)

    def should_wait(self, args: argparse.Namespace) -> bool:
        """Return whether a cell waits for the job's end: with ``--wait``, or by default if a program runs the notebook.

        nbclient, which runs cells for papermill and nbconvert, sets ``allow_stdin`` to False.
        """
        kernel = getattr(self.ip, "kernel", None)
        request = kernel.get_parent().get("content", {}) if kernel is not None else {}
        return bool(getattr(args, "wait", not request.get("allow_stdin", True)))

    def store(self, name: str | None, value: object) -> None:
        """Store a value in a variable of the notebook, if ``name`` is given."""
        if name is not None:
            self.ip.push({name: value})


def make_magic(
    name: str, run: Callable[..., Any], text: str, parser: Callable[[], Parser] | None = None
) -> Callable[..., Any]:
    """Return the function to register with IPython.

    Its help is ``text``, or the help of ``parser``, which ``--help`` also prints. The parser is created on demand,
    because its help lists the flags of every plug-in, and loading all plug-ins is slow.
    """

    def magic(line: str, *cell: str) -> Any:
        if parser is not None and not {"-h", "--help"}.isdisjoint(line.split()):
            say(parser().format_help())
            return None
        with shorten_errors():
            return run(line, *cell)

    magic.__name__, magic.__doc__ = name, text
    if parser is not None:
        magic.getdoc = lambda: parser().format_help()  # type: ignore[attr-defined]
    return magic


@contextlib.contextmanager
def shorten_errors() -> Iterator[None]:
    """Make IPython show errors of this package as one line, and syntax errors of a cell only with their location."""
    try:
        yield
    except SystemExit:
        pass  # argparse has printed the help of a command
    except DistDLError as error:
        if "_render_traceback_" not in vars(type(error)):  # a class with this method renders itself
            show_as(error, [f"{type(error).__name__}: {to_flags(str(error))}"])
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


def check_identifier(name: str | None) -> str | None:
    """Return ``name`` if it is a valid variable name or None. Raises InvalidSpec."""
    if name is not None and not name.isidentifier():
        raise InvalidSpec(f"--out must be a variable name, not {name!r}.", code="out-name-invalid", field="out")
    return name


def say(text: str) -> None:
    """Print a line of output."""
    print(text, flush=True)  # noqa: T201 - a cell's output
