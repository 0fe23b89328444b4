"""``%dist_ranks``: start persistent ranks, look at them, interrupt, restart and stop them, exchange names with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core import humanize, table
from distdl_jupyter.core.errors import InvalidSpec, JobNotFound
from distdl_jupyter.core.humanize import plural, seconds_taken, short_id
from distdl_jupyter.core.resources import ResourceReader
from distdl_jupyter.form.arguments import Parser, job_options, job_parser
from distdl_jupyter.magic.ranks_magic import ranks_of
from distdl_jupyter.magic.session import Session, say, short_errors

if TYPE_CHECKING:
    import argparse

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
        self._actions: dict[str, Callable[[str], Any]] = {
            "": self._status,
            "start": self._start,
            "stop": self._stop,
            "restart": self._restart,
            "interrupt": self._interrupt,
            "attach": self._attach,
            "push": self._push,
            "pull": self._pull,
        }

    def function(self) -> Callable[[str], Any]:
        """Return the function to register; its docstring is the help text."""

        def dist_ranks(line: str) -> Any:
            with short_errors():
                return self.run(line)

        dist_ranks.__doc__ = _parser().format_help()
        return dist_ranks

    def run(self, line: str) -> Any:
        """Do what the line says. Raises DistDLError."""
        action, _, rest = line.strip().partition(" ")
        if action != "start":  # its help lists the flags of a job
            _parser().answer_help(line.split())
        if action not in self._actions:
            raise InvalidSpec(
                f"Unknown action {action!r} of %dist_ranks. Use one of: {', '.join(ACTIONS)}, or no action to show "
                "the ranks.",
                code="ranks-action-unknown",
                field="action",
            )
        return self._actions[action](rest.strip())

    def _status(self, _rest: str) -> RanksTable:
        current = self._session.ranks
        found = current.find()
        return RanksTable(found, known=found is current.own(), ended=current.ended())

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

    def _stop(self, rest: str) -> None:
        _alone(rest, "stop")
        ranks = self._session.ranks.get()
        ranks.stop()
        say(f"{plural(ranks.size, 'rank')} stopped ({short_id(ranks.id)}).")

    def _restart(self, rest: str) -> None:
        _alone(rest, "restart")
        begun = time.monotonic()
        ranks = self._session.ranks.get()
        self._ready(ranks.restart(_say_wait), begun)

    def _interrupt(self, rest: str) -> None:
        _alone(rest, "interrupt")
        self._session.ranks.get().interrupt()

    def _attach(self, rest: str) -> None:
        from distdl_jupyter import ranks

        found = ranks.current(only=rest)
        if found is None:
            of = f" of job {rest}" if rest else ""
            raise JobNotFound(
                f"No ranks{of} are running.", code="no-ranks", hint="Start two with: %dist_ranks start -p 2"
            )
        self._session.ranks.choose(found)
        say(f"Using {plural(found.size, 'rank')} of job {short_id(found.id)}.")

    def _push(self, rest: str) -> None:
        chosen = _names_parser().parse(rest)
        space = self._session.ip.user_ns
        unknown = [name for name in chosen.names if name not in space]
        if unknown:
            raise InvalidSpec(f"The notebook has no variable {unknown[0]!r}.", code="push-name-unknown", field="names")
        ranks = self._session.ranks.get()
        ranks.push(_on(chosen, ranks), **{name: space[name] for name in chosen.names})

    def _pull(self, rest: str) -> Any:
        chosen = _names_parser().parse(rest)
        if len(chosen.names) != 1:
            raise InvalidSpec("%dist_ranks pull needs exactly one variable name.", code="pull-one-name", field="names")
        ranks = self._session.ranks.get()
        on = _on(chosen, ranks)
        values = ranks.pull(chosen.names[0], on=on)
        return values if on is not None else [values[rank] for rank in sorted(values)]


def actions(_ip: Any, event: Any) -> list[str]:
    """Complete the action, and the variables that can be pushed (a hook of IPython's)."""
    words = str(event.line).split()
    if len(words) - (0 if event.line.endswith(" ") else 1) <= 1:
        return list(ACTIONS)
    return [name for name in _ip.user_ns if not name.startswith("_")] if words[1] == "push" else []


def _parser() -> Parser:
    return Parser("%dist_ranks", _DESCRIPTION, epilog=_EPILOG, places=" [ACTION]")


def _names_parser() -> Parser:
    parser = Parser("%dist_ranks", _DESCRIPTION)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--ranks", dest="on", metavar="RANKS")
    return parser


def _on(chosen: argparse.Namespace, ranks: Ranks) -> list[int] | None:
    return None if chosen.on is None else ranks_of(chosen.on, ranks.size)


def _alone(rest: str, action: str) -> None:
    if rest:
        raise InvalidSpec(
            f"%dist_ranks {action} has no arguments. Remove {rest!r}.",
            code="ranks-action-arguments",
            field="action",
        )


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
    """Return the rows of the table, its head first."""
    found = ranks.job.view().ranks
    if ranks.job.spec.cluster == "local":
        rows = [(str(one.rank), str(one.pid or ""), _memory(one.pid) if one.pid else "") for one in found]
        return [("Rank", "Process", "Memory"), *rows]
    used = _measured(ranks)
    there = [(str(one.rank), one.host, str(one.pid or ""), used.get(one.rank, "")) for one in found]
    return [("Rank", "Host", "Process", "Memory"), *there]


def _measured(ranks: Ranks) -> dict[int, str]:
    """Return the memory of ranks on other machines, as far as their agents have measured it."""
    samples = ResourceReader(ranks.job.folder.resources).all()
    newest = {rank: use.memory for sample in samples for rank, use in sample.ranks.items()}
    return {rank: humanize.size(memory) for rank, memory in newest.items() if memory is not None}


def _memory(pid: int) -> str:
    """Return the private memory of a process, "" when it is gone."""
    import psutil

    try:
        return humanize.size(psutil.Process(pid).memory_full_info().uss)
    except psutil.Error:
        return ""
