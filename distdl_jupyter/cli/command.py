"""Declares commands and their replies: text for a terminal, an object for a notebook."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TextIO

from distdl_jupyter.core.errors import InvalidSpec, JobNotFound
from distdl_jupyter.core.humanize import STYLES, printable
from distdl_jupyter.form.arguments import Parser
from distdl_jupyter.views.wire import to_json

if TYPE_CHECKING:
    from distdl_jupyter.jobs.client import Job


_ID_HELP = "id of the job, or the last part of it"
#: A maximum length that no text reaches, because any part of a log line may be needed.
_NO_LIMIT = sys.maxsize // 8


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a command.

    ``value`` is the object that a notebook displays. A terminal prints ``text``, or ``value`` if ``text`` is None, then
    the ``notes``. ``code`` is the exit code.
    """

    value: Any = None
    text: str | None = None
    notes: tuple[str, ...] = ()
    code: int = 0


#: A command returns a Reply, or just its value.
Command = Callable[[argparse.Namespace], Any]


def add_command(
    commands: Any,
    name: str,
    run: Command,
    summary: str,
    *,
    details: str = "",
    aliases: tuple[str, ...] = (),
    has_json: bool = False,
    job: Literal["", "newest", "required"] = "",
) -> Parser:
    """Add a command and return its parser; ``details`` follow ``summary`` in its help. ``has_json`` adds ``--json``.

    Add a job ID argument if ``job`` is "required", or an optional one that defaults to the newest job if "newest".
    """
    description = f"{summary[0].upper()}{summary[1:]}. {details}".strip()
    parser: Parser = commands.add_parser(name, help=summary, description=description, aliases=aliases)
    parser.set_defaults(run=run, command=name)
    if has_json:
        parser.add_argument("--json", action="store_true", help="print as JSON")
    if job == "required":
        parser.add_argument("id", help=_ID_HELP)
    elif job:
        parser.add_argument("id", nargs="?", help=f"{_ID_HELP} (default: the newest job)")
    return parser


def add_group(
    commands: Any, name: str, run: Command, summary: str, *, details: str = "", has_json: bool = False
) -> Any:
    """Add a command with subcommands and return its subparsers."""
    parser = add_command(commands, name, run, summary, details=details, has_json=has_json)
    return parser.add_subparsers(title="commands", metavar="COMMAND")


def run_command(args: argparse.Namespace) -> Reply:
    """Run the selected command."""
    value = args.run(args)
    return value if isinstance(value, Reply) else Reply(value)


def print_reply(reply: Reply, args: argparse.Namespace) -> None:
    """Print a reply as text, or as JSON or CSV if requested."""
    value = reply.value
    if getattr(args, "json", False):
        if value is not None:
            print(json.dumps(_to_data(value), indent=1))
    elif getattr(args, "csv", False):
        frame = value.table if hasattr(value, "table") else value.to_pandas()
        frame.to_csv(sys.stdout, index=False)
    elif getattr(args, "figure", False):
        value.show()
    elif reply.text is not None or value is not None:
        print((str(value) if reply.text is None else reply.text).removesuffix("\n"))
    if not getattr(args, "json", False) and (not getattr(args, "csv", False) or getattr(args, "save", False)):
        for note in reply.notes:
            print(note)


def _to_data(value: Any) -> Any:
    """Return a value as strict JSON data; a number that is not finite becomes its name or null."""
    from distdl_jupyter.jobs.client import Job

    if isinstance(value, Job):
        return json.loads(json.dumps(value.view().to_json()), parse_constant=str)
    if hasattr(value, "to_json"):
        return value.to_json()
    if hasattr(value, "table"):
        return json.loads(value.table.to_json(orient="records"))
    return [_to_data(item) for item in value] if isinstance(value, list) else to_json(value)


def parse_ranks(text: str, size: int) -> list[int]:
    """Parse ranks such as ``0,2`` or ``1-3`` and return them in ascending order. Raises InvalidSpec."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise InvalidSpec(
                f"{text!r} is not a valid list of ranks. Write ranks as 0,2 or 1-3.",
                code="ranks-selection-invalid",
                field="on",
            )
        low, high = int(match[1]), int(match[2] or match[1])
        if low > high or high >= size:
            raise InvalidSpec(
                f"Unknown rank {part.strip()}. The ranks are 0 to {size - 1}.", code="rank-unknown", field="on"
            )
        ranks.update(range(low, high + 1))
    return sorted(ranks)


def find_job(id_: str | None) -> Job:
    """Return the job with this id (default: the newest job). Raises JobNotFound."""
    from distdl_jupyter.jobs import client

    try:
        return client.attach(id_)
    except JobNotFound as error:
        hint = "List the jobs with 'distdl ls'." if id_ is not None else "Start one with: distdl submit -p 2 train.py"
        raise JobNotFound(error.message, code=error.code, hint=hint) from None


# output that is safe for a terminal -------------------------------------------------------------------


def make_safe(text: str, *, colors: bool) -> str:
    """Return text that is safe for a terminal, with the same lines."""
    if text.isprintable():
        return text
    return "\n".join(_make_line_safe(line, colors=colors) for line in text.split("\n"))


def _make_line_safe(line: str, *, colors: bool) -> str:
    if not colors or "\x1b[" not in line or "\r" in line or "\b" in line:
        return printable(line, _NO_LIMIT)
    parts = STYLES.split(line)
    safe_parts = [part if index % 2 else printable(part, _NO_LIMIT) for index, part in enumerate(parts)]
    # The color of a line must not affect the prompt.
    return "".join(safe_parts) + ("\x1b[0m" if len(parts) > 1 else "")


class SafeStream:
    """A wrapper around a stream that writes only safe text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._colors = stream.isatty()

    def write(self, text: str) -> int:
        """Write text."""
        self._stream.write(make_safe(text, colors=self._colors))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def filter_output() -> Iterator[None]:
    """Write only text, colors and font styles to the terminal in this context.

    A log line, a name or an error may contain control sequences that change the title of the terminal, move its cursor,
    hide text or inject commands.
    """
    out: Any = SafeStream(sys.stdout)
    err: Any = SafeStream(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


def escape_unencodable() -> None:
    """Escape characters that stdout cannot encode, such as lone surrogates."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
