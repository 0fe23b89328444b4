"""``%dist_ranks`` starts persistent ranks, controls them and exchanges variables with them; ``%%ranks`` runs a cell.

A kernel uses the ranks that it started or attached to, else the user's newest ranks, such as those that it used before
a restart. Ranks outlive kernels; ``%dist_ranks stop`` stops them.
"""

from __future__ import annotations

import argparse
import functools
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter import capture
from distdl_jupyter.core import humanize
from distdl_jupyter.core.errors import InvalidSpec, JobNotFound, show_as
from distdl_jupyter.core.humanize import duration, plural, seconds_taken, short_id, size
from distdl_jupyter.core.resources import ResourceHistory
from distdl_jupyter.form.arguments import Parser, add_all_flags, get_job_options, make_magic_parser
from distdl_jupyter.magic.session import Session, check_identifier, make_magic, say

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.ranks import Ranks
    from distdl_jupyter.ranks.answer import Answer, Event

_LINE_HELP = """
    Keep ranks alive between cells; %%ranks at the top of a cell runs it on them. Without an action, show the ranks:
    their state, processes and memory. They run as a job, so they survive a kernel restart and a page reload: %%ranks
    then finds them with all their variables.
    """
_CELL_HELP = """
    Run this cell on the ranks started with ``%dist_ranks start``.

    Every rank runs it in its own namespace, which is kept between cells, as in a kernel. The values of the last
    expression are returned as a list ordered by rank (also in ``_``); identical lines and values are shown once.
    Interrupting the kernel interrupts the ranks; their variables are kept.
    """
_CELL_EPILOG = """
    Each rank knows ``rank``, ``local_rank`` and ``world_size``, and reports with ``log(step=..., loss=...)``.

    Examples:

        %%ranks
        %%ranks 0,2
        %%ranks 1-3 --quiet -o losses

    If you name ranks, the values are returned as a dict by rank. ``%dist_ranks push x`` sends a variable of the
    notebook to the ranks.
    """
_UNDEFINED_NAME = re.compile(r"name '(\w+)' is not defined")
_NO_RANKS = (
    "No ranks are running. Start two with %dist_ranks start -p 2, then start a cell with %%ranks to run it on them."
)


class RanksMagics:
    """``%dist_ranks`` and ``%%ranks`` of one kernel."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def make_line_magic(self) -> Callable[..., Any]:
        """Return the line magic to register."""
        text = "Start persistent ranks, show, interrupt, restart and stop them, exchange variables with them."
        magic = make_magic("dist_ranks", self._run_line, text)
        magic.getdoc = lambda: self.make_parser().format_help()  # type: ignore[attr-defined]
        return magic

    def make_cell_magic(self) -> Callable[..., Any]:
        """Return the cell magic to register."""
        text = "Run this cell on the ranks started with %dist_ranks start."
        return make_magic("ranks", self._run_cell, text, make_cell_parser)

    # the ranks of this kernel ---------------------------------------------------------------------

    def _find(self) -> Ranks | None:
        """Return the running ranks of this kernel, else the user's newest ones, else None."""
        from distdl_jupyter import ranks

        current = self._session.ranks
        return current if current is not None and current.state() != "ended" else ranks.find_session()

    def _get(self) -> Ranks:
        """Return the ranks to use; those of this kernel may have ended. Raises JobNotFound."""
        if self._session.ranks is not None:
            return self._session.ranks
        ranks = self._find()
        if ranks is None:
            raise _create_no_ranks_error()
        say(f"Using {plural(ranks.size, 'rank')} started earlier ({short_id(ranks.id)}). Their variables are kept.")
        self._session.ranks = ranks
        return ranks

    # %dist_ranks ----------------------------------------------------------------------------------

    def make_parser(self) -> Parser:
        """Return the parser of the line magic. ``start`` has the flags of a job."""
        from distdl_jupyter.cli.command import add_command

        parser = Parser(prog="%dist_ranks", description=_LINE_HELP)
        actions = parser.add_subparsers(title="actions", metavar="ACTION")
        text = "start ranks with the flags of a job: start -p 4 -b torch"
        add_all_flags(add_command(actions, "start", self._start, text))
        add_command(actions, "stop", self._stop, "stop the ranks gracefully")
        text = "stop the ranks and start the same number, with empty namespaces"
        add_command(actions, "restart", self._restart, text)
        text = "raise KeyboardInterrupt in the cell that runs on the ranks; their variables are kept"
        add_command(actions, "interrupt", lambda _: self._get().interrupt(), text)
        command = add_command(actions, "attach", self._attach, "use the ranks of this job from now on")
        command.add_argument("id", nargs="?", default="", help="id of the job (default: the newest running one)")
        push = add_command(actions, "push", self._push, "send variables of this notebook to every rank")
        push.add_argument("names", nargs="+", metavar="NAME", help="name of a variable")
        text = "get a variable from every rank, as a list ordered by rank; with --ranks, as a dict"
        pull = add_command(actions, "pull", self._pull, text)
        pull.add_argument("name", metavar="NAME", help="name of the variable")
        for command in (push, pull):
            command.add_argument("--ranks", dest="on", metavar="RANKS", help="only these ranks, such as 0,2 or 1-3")
        return parser

    def _run_line(self, line: str) -> Any:
        args = self.make_parser().parse(line)
        return getattr(args, "run", self._show_status)(args)

    def _show_status(self, _: argparse.Namespace) -> RanksTable:
        ranks, current = self._find(), self._session.ranks
        end_reason = current.state().reason if current is not None and ranks is not current else ""
        return RanksTable(ranks, is_known=ranks is current, end_reason=end_reason)

    def _start(self, args: argparse.Namespace) -> None:
        from distdl_jupyter import ranks

        running = self._session.ranks
        if running is not None and running.state() != "ended":
            raise InvalidSpec(
                f"{plural(running.size, 'rank')} of this kernel are already running ({short_id(running.id)}).",
                code="ranks-alive-already",
                hint="Stop them with %dist_ranks stop, or restart them with %dist_ranks restart.",
            )
        start_time = time.monotonic()
        self._use(ranks.start(on_wait=_print_wait, **get_job_options(args, self._session.defaults)), start_time)

    def _use(self, ranks: Ranks, start_time: float) -> None:
        self._session.ranks, self._session.newest_job_id = ranks, ranks.id
        backend, seconds = ranks.job.spec.distributed_backend, seconds_taken(time.monotonic() - start_time)
        verb = "is" if ranks.size == 1 else "are"
        say(
            f"{plural(ranks.size, 'rank')} {verb} ready after {seconds}: {backend}, job {short_id(ranks.id)}. "
            "Start a cell with %%ranks to run it on them."
        )
        if ranks.setup_call and ranks.size > 1:
            say(f"Call {ranks.setup_call} once in a cell to initialize communication.")

    def _stop(self, _: argparse.Namespace) -> None:
        ranks = self._get()
        ranks.stop()
        say(f"{plural(ranks.size, 'rank')} stopped ({short_id(ranks.id)}).")

    def _restart(self, _: argparse.Namespace) -> None:
        start_time = time.monotonic()
        self._use(self._get().restart(_print_wait), start_time)

    def _attach(self, args: argparse.Namespace) -> None:
        from distdl_jupyter import ranks

        match = ranks.find_session(only=args.id)
        if match is None:
            raise _create_no_ranks_error(f" of job {args.id}" if args.id else "")
        self._session.ranks = match
        say(f"Using {plural(match.size, 'rank')} of job {short_id(match.id)}.")

    def _push(self, args: argparse.Namespace) -> None:
        variables = self._session.ip.user_ns
        unknown = [name for name in args.names if name not in variables]
        if unknown:
            raise InvalidSpec(f"The notebook has no variable {unknown[0]!r}.", code="push-name-unknown", field="names")
        ranks = self._get()
        ranks.push(_parse_ranks(args.on, ranks), **{name: variables[name] for name in args.names})

    def _pull(self, args: argparse.Namespace) -> Any:
        ranks = self._get()
        on = _parse_ranks(args.on, ranks)
        values = ranks.pull(args.name, on=on)
        return values if on is not None else [values[rank] for rank in sorted(values)]

    # %%ranks --------------------------------------------------------------------------------------

    def _run_cell(self, line: str, cell: str) -> Any:
        """Run one cell and return its values, or None if there are none. Raises CellFailed."""
        args = make_cell_parser().parse(line)
        check_identifier(args.out)
        ranks = self._get()
        on, notebook = _parse_ranks(args.on, ranks), capture.current_location()
        label = "" if notebook.execution_count is None else f"In [{notebook.execution_count}]"
        run = functools.partial(ranks.run, cell, on=on, label=label, raw_cell=notebook.raw)
        values = self._show(ranks, on, run, quiet=args.quiet)
        return self._session.store(args.out, values) if args.out else values

    def run_draft(self, draft: CapturedCode) -> Any:
        """Run the captured cell of ``%%distributed --on-ranks`` and return the values. Raises CellFailed."""
        ranks = self._get()
        return self._show(ranks, None, functools.partial(ranks.run_distributed, draft), quiet=False)

    def _show(self, ranks: Ranks, on: Sequence[int] | None, run: Callable[..., Answer], *, quiet: bool) -> Any:
        """Run code on ranks by ``run(on_event=...)`` and display its output; return the values. Raises CellFailed."""
        from distdl_jupyter.ranks import CellInterrupt, Output, RankResult
        from distdl_jupyter.ranks.answer import CellFailed, find_failures
        from distdl_jupyter.widgets.ranks import CellDisplay, RankValues, TerminalDisplay, ValuesByRank

        numbers = tuple(range(ranks.size)) if on is None else tuple(on)
        if hasattr(self._session.ip, "kernel"):
            output: CellDisplay | TerminalDisplay = CellDisplay(numbers, short_id(ranks.id), quiet=quiet)
        else:
            output = TerminalDisplay(numbers, quiet=quiet)

        def on_event(event: Event) -> None:
            if isinstance(event, Output):
                output.add(event.rank, event.stream, event.text)
            elif isinstance(event, RankResult):
                output.mark_done(event.rank, None if event.error is None else self._add_hint(event.error))
            else:
                output.show_sentence(event.text)

        try:
            answer = run(on_event=on_event)
        except CellInterrupt as interrupt:
            show_as(interrupt, [f"KeyboardInterrupt: {interrupt}"])
            raise
        finally:
            has_shown_failures = output.finish()
        errors = {rank: self._add_hint(error) for rank, error in answer.errors.items()}
        failure = find_failures(errors, numbers)
        if failure is not None:
            raise CellFailed(failure, errors, shown=has_shown_failures)
        forms = {rank: answer.results[rank].shown for rank in sorted(answer.results)}
        if not any(forms.values()):
            return None
        return RankValues(answer, forms) if on is None else ValuesByRank(answer, forms)

    def _add_hint(self, error: dict[str, Any]) -> dict[str, Any]:
        """Return the error, with a hint if it is a NameError for a variable of the notebook."""
        match = _UNDEFINED_NAME.match(str(error.get("message", ""))) if error.get("type") == "NameError" else None
        if match is None or match[1] not in self._session.ip.user_ns:
            return error
        hint = f"`{match[1]}` is a variable of the notebook. Send it to the ranks with `%dist_ranks push {match[1]}`."
        return {**error, "hint": hint}


@functools.cache
def make_cell_parser() -> Parser:
    """Return the parser of the cell magic."""
    parser = make_magic_parser("%%ranks", _CELL_HELP, epilog=_CELL_EPILOG, usage=" [RANKS]")
    parser.add_argument("on", nargs="?", metavar="RANKS", help="For example 0,2 or 1-3 (default: all).")
    parser.add_argument("-q", "--quiet", action="store_true", help="Show no output unless the cell fails.")
    parser.add_argument("-o", "--out", metavar="NAME", help="Store the values in this variable and do not show them.")
    return parser


def _create_no_ranks_error(suffix: str = "") -> JobNotFound:
    return JobNotFound(f"No ranks{suffix} are running.", code="no-ranks", hint="Start two with: %dist_ranks start -p 2")


def _parse_ranks(text: str | None, ranks: Ranks) -> list[int] | None:
    from distdl_jupyter.cli.command import parse_ranks

    return None if text is None else parse_ranks(text, ranks.size)


def _print_wait(detail: str) -> None:
    say(f"Not ready yet: {detail}.")


# the table --------------------------------------------------------------------------------------------


class RanksTable(humanize.Display):
    """Persistent ranks with their state, processes and memory.

    ``is_known`` is false for ranks of another kernel. ``end_reason`` is how the kernel's ranks ended, or "".
    """

    def __init__(self, ranks: Ranks | None, *, is_known: bool = True, end_reason: str = "") -> None:
        self._content: list[str | humanize.Rows] = [f"{end_reason} {_NO_RANKS}".strip()]
        if ranks is not None:
            self._content = [_summarize(ranks, is_known=is_known), _list_rows(ranks)]

    def _parts(self) -> Sequence[str | humanize.Rows]:
        return self._content


def _summarize(ranks: Ranks, *, is_known: bool) -> str:
    """Return sentences about the number of ranks, their activity, and when they stop."""
    from distdl_jupyter.ranks.request import find_last_cell

    spec, now, state = ranks.job.spec, time.time(), ranks.state()
    location = "" if spec.cluster == "local" else f" on {spec.compute_target}"
    verb = "is" if ranks.size == 1 else "are"
    sentences = [
        f"{plural(ranks.size, 'rank')} {verb} running{'' if is_known else ', started earlier'}, for "
        f"{duration(max(0.0, now - spec.created))}: {spec.distributed_backend}{location}, job {short_id(ranks.id)}."
    ]
    last = find_last_cell(ranks.job.folder.log)
    if state == "idle":
        sentences.append(f"They are idle{f'; the last cell was {last[0]}' if last else ''}.")
    elif state == "busy" and last:
        sentences.append(f"{last[0]} has been running on them for {duration(now - last[1])}.")
    elif state.reason:
        sentences.append(state.reason)
    limits = [f"after {duration(spec.idle_timeout_seconds)} without a cell"] if spec.idle_timeout_seconds else []
    if spec.max_run_duration_seconds:
        limits.append(f"{duration(spec.max_run_duration_seconds)} after their start")
    return " ".join([*sentences, *([f"They stop {' and '.join(limits)}."] if limits else [])])


def _list_rows(ranks: Ranks) -> humanize.Rows:
    """Return a header and a row for each rank with its last measured memory usage."""
    usage = ResourceHistory(ranks.job.folder.resources, curves=False)
    usage.read()
    memory_by_rank = {rank: rank_usage.memory for rank, (_, rank_usage) in usage.ranks.items()}
    show_host = ranks.job.spec.cluster != "local"
    rows = [("Rank", "Host", "Process", "Memory")]
    for view in ranks.job.view().ranks:
        memory, host = memory_by_rank.get(view.rank), view.host if show_host else ""
        rows.append((str(view.rank), host, str(view.pid or ""), "" if memory is None else size(memory)))
    return rows
