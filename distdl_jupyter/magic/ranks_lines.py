"""``%dist_ranks``: start persistent ranks, look at them, interrupt, restart and stop them, exchange names with them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import humanize, table
from distdl_jupyter.core.errors import InvalidSpec, JobNotFound
from distdl_jupyter.core.humanize import plural, seconds_taken, short_id
from distdl_jupyter.core.resources import ResourceReader
from distdl_jupyter.form.arguments import Parser, job_options, job_parser, ranks_of
from distdl_jupyter.magic.session import Session, as_magic, say

if TYPE_CHECKING:
    from distdl_jupyter.ranks import Ranks

_DESCRIPTION = (
    "\nKeep ranks alive between cells; ``%%ranks`` on top of a cell runs it on them.\n\nWithout an action it shows "
    "the ranks: their state, processes and memory. They run as a job, so they survive a\nkernel restart and a page "
    "reload: ``%%ranks`` then finds them with all their variables.\n"
)

_EPILOG = (
    "\nActions:\n\n    start [flags]       Start ranks; the flags are those of %%distributed, such as -p 4 -b "
    "horovod-gloo, or\n                        --target lab -N 2 for ranks on other machines.\n    "
    "stop                Stop them gracefully.\n    restart             Stop them and start the same number, with "
    "empty namespaces.\n    interrupt           Raise KeyboardInterrupt in the cell that runs on them; their "
    "variables are kept.\n    attach [ID]         Use the ranks of this job from now on (default: the newest "
    "running).\n    push NAME ...       Send variables of this notebook to every rank.\n    pull NAME           Get "
    "a variable from every rank, as a list ordered by rank.\n      --ranks 0,2       push and pull: only these "
    "ranks; pull then returns a dict.\n\nExamples:\n\n    %dist_ranks start -p 4 -b horovod-gloo\n    %dist_ranks "
    "push data\n    weights = %dist_ranks pull weights\n"
)
ACTIONS = ("start", "stop", "restart", "interrupt", "attach", "push", "pull")


class RankLines:
    """The line magic of one kernel."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def function(self) -> Callable[..., Any]:
        """Return the function to register; its docstring is the help text."""
        return as_magic("dist_ranks", self.run, parser().format_help())

    def run(self, line: str) -> Any:
        """Do what the line says. Raises DistDLError."""
        action, _, rest = line.strip().partition(" ")
        if action == "start":  # its help lists the flags of a job
            self._start(rest)
            return None
        chosen = parser().parse(line)
        if chosen.action not in (None, *ACTIONS):
            raise InvalidSpec(
                f"Unknown action {chosen.action!r} of %dist_ranks. Use one of: {', '.join(ACTIONS)}, or no action to "
                "show the ranks.",
                code="ranks-action-unknown",
                field="action",
            )
        if chosen.names and action not in ("attach", "push", "pull"):
            raise InvalidSpec(
                f"%dist_ranks {action} has no arguments. Remove {rest.strip()!r}.",
                code="ranks-action-arguments",
                field="action",
            )
        return getattr(self, f"_{chosen.action or 'status'}")(chosen)

    def _status(self, _: argparse.Namespace) -> RanksTable:
        current = self._session.ranks
        ranks = current.find()
        return RanksTable(ranks, known=ranks is current.own(), ended=current.ended())

    def _start(self, rest: str) -> None:
        from distdl_jupyter import ranks

        if (own := self._session.ranks.own()) is not None:
            raise InvalidSpec(
                f"{plural(own.size, 'rank')} of this kernel are already running ({short_id(own.id)}).",
                code="ranks-alive-already",
                hint="Stop them with %dist_ranks stop, or restart them with %dist_ranks restart.",
            )
        chosen = job_parser(Parser("%dist_ranks", _DESCRIPTION)).parse(rest)
        begun = time.monotonic()
        self._ready(ranks.start(on_wait=_say_wait, **job_options(chosen, self._session.defaults)), begun)

    def _ready(self, ranks: Ranks, begun: float) -> None:
        self._session.ranks.choose(ranks)
        self._session.started(ranks.job)
        backend = ranks.job.spec.distributed_backend
        spent = seconds_taken(time.monotonic() - begun)
        verb = "is" if ranks.size == 1 else "are"
        meet = (
            f"\nCall {ranks.setup_call} once in a cell to initialize communication."
            if ranks.setup_call and ranks.size > 1
            else ""
        )
        say(
            f"{plural(ranks.size, 'rank')} {verb} ready after {spent}: {backend}, job {short_id(ranks.id)}. Start a "
            f"cell with %%ranks to run it on them.{meet}"
        )

    def _stop(self, _: argparse.Namespace) -> None:
        ranks = self._session.ranks.get()
        ranks.stop()
        say(f"{plural(ranks.size, 'rank')} stopped ({short_id(ranks.id)}).")

    def _restart(self, _: argparse.Namespace) -> None:
        begun = time.monotonic()
        ranks = self._session.ranks.get()
        self._ready(ranks.restart(_say_wait), begun)

    def _interrupt(self, _: argparse.Namespace) -> None:
        self._session.ranks.get().interrupt()

    def _attach(self, chosen: argparse.Namespace) -> None:
        from distdl_jupyter import ranks

        id_ = " ".join(chosen.names)
        match = ranks.current(only=id_)
        if match is None:
            of = f" of job {id_}" if id_ else ""
            raise JobNotFound(
                f"No ranks{of} are running.", code="no-ranks", hint="Start two with: %dist_ranks start -p 2"
            )
        self._session.ranks.choose(match)
        say(f"Using {plural(match.size, 'rank')} of job {short_id(match.id)}.")

    def _push(self, chosen: argparse.Namespace) -> None:
        if not chosen.names:
            raise InvalidSpec("%dist_ranks push needs the names of variables.", code="push-no-name", field="names")
        space = self._session.ip.user_ns
        unknown = [name for name in chosen.names if name not in space]
        if unknown:
            raise InvalidSpec(f"The notebook has no variable {unknown[0]!r}.", code="push-name-unknown", field="names")
        ranks = self._session.ranks.get()
        ranks.push(_on(chosen, ranks), **{name: space[name] for name in chosen.names})

    def _pull(self, chosen: argparse.Namespace) -> Any:
        if len(chosen.names) != 1:
            raise InvalidSpec("%dist_ranks pull needs exactly one variable name.", code="pull-one-name", field="names")
        ranks = self._session.ranks.get()
        on = _on(chosen, ranks)
        values = ranks.pull(chosen.names[0], on=on)
        return values if on is not None else [values[rank] for rank in sorted(values)]


def parser() -> Parser:
    """Return the parser of the line magic."""
    made = Parser("%dist_ranks", _DESCRIPTION, epilog=_EPILOG, usage=" [ACTION] [NAME ...]")
    made.add_argument("action", nargs="?", help=argparse.SUPPRESS)
    made.add_argument("names", nargs="*", help=argparse.SUPPRESS)
    made.add_argument("--ranks", dest="on", metavar="RANKS", help=argparse.SUPPRESS)
    return made


def _on(chosen: argparse.Namespace, ranks: Ranks) -> list[int] | None:
    return None if chosen.on is None else ranks_of(chosen.on, ranks.size)


def _say_wait(detail: str) -> None:
    say(f"Not ready yet: {detail}.")


# the table --------------------------------------------------------------------------------------------

_NONE = "No ranks are running. Start two with %dist_ranks start -p 2, then start a cell with %%ranks to run it on them."


class RanksTable(table.Display):
    """Persistent ranks with their state, processes and memory, for a notebook and for a terminal.

    ``known`` is set when this kernel has used the ranks, else they are from before. ``ended`` says how the kernel's own
    ranks ended ("" when they did not).
    """

    def __init__(self, ranks: Ranks | None, *, known: bool = True, ended: str = "") -> None:
        self._sentence = f"{ended} {_NONE}".strip() if ranks is None else _sentence(ranks, known=known)
        self._rows = [] if ranks is None else _rows(ranks)

    def _parts(self) -> list[str | table.Rows]:
        return [self._sentence, *([self._rows] if self._rows else [])]


def _sentence(ranks: Ranks, *, known: bool) -> str:
    spec = ranks.job.spec
    alive = "is" if ranks.size == 1 else "are"
    before = "" if known else ", started earlier"
    since = humanize.duration(max(0.0, time.time() - spec.created))
    who = f"{humanize.plural(ranks.size, 'rank')} {alive} running{before}, for {since}"
    on = "" if spec.cluster == "local" else f" on {spec.compute_target}"
    started = f"{who}: {spec.distributed_backend}{on}, job {humanize.short_id(ranks.id)}."
    return " ".join(filter(None, (started, _doing(ranks), _limits(ranks))))


def _doing(ranks: Ranks) -> str:
    from distdl_jupyter.ranks.request import last_cell

    state, last = ranks.state(), last_cell(ranks.job.folder.log)
    if state == "busy":
        return (
            f"{last.label} runs on them, for {humanize.duration(time.time() - last.begun)}." if last else state.reason
        )
    if state == "idle":
        return f"They are idle{f'; the last cell was {last.label}' if last else ''}."
    return state.reason


def _limits(ranks: Ranks) -> str:
    """Return the time limits of ranks."""
    spec, parts = ranks.job.spec, []
    if spec.idle_timeout_seconds is not None:
        parts.append(f"after {humanize.duration(spec.idle_timeout_seconds)} without a cell")
    if spec.max_run_duration_seconds is not None:
        parts.append(f"{humanize.duration(spec.max_run_duration_seconds)} after their start")
    return f"They stop {' and '.join(parts)}." if parts else ""


def _rows(ranks: Ranks) -> list[tuple[str, ...]]:
    """Return the rows of the table, its head first; the memory is as the job has measured it last."""
    samples = ResourceReader(ranks.job.folder.resources).all()
    used = {rank: use.memory for sample in samples for rank, use in sample.ranks.items()}
    is_local = ranks.job.spec.cluster == "local"
    rows = [("Rank", "Host", "Process", "Memory")]
    for view in ranks.job.view().ranks:
        memory = used.get(view.rank)
        size = "" if memory is None else humanize.size(memory)
        rows.append((str(view.rank), view.host, str(view.pid or ""), size))
    return [(rank, *more) for rank, _, *more in rows] if is_local else [*rows]
