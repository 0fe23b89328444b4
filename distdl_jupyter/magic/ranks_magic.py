"""``%%ranks``: a cell runs on persistent ranks, in the namespace that they keep, and its values come back."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter import capture
from distdl_jupyter.core.errors import show_as
from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.form.arguments import Parser, ranks_of
from distdl_jupyter.magic.session import Session, as_magic, identifier

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.ranks import Answer, Event, Ranks
    from distdl_jupyter.widgets.ranks import Output

_DESCRIPTION = (
    "\nRun this cell on the ranks started with ``%dist_ranks start``.\n\nEvery rank runs it in its own namespace, "
    "which is kept between cells, as in a kernel. The values of the last\nexpression are returned as a list ordered "
    "by rank (also in ``_``); identical lines and values are shown once.\nInterrupting the kernel interrupts the "
    "ranks; their variables are kept.\n"
)

_EPILOG = (
    "\nEach rank knows ``rank``, ``local_rank`` and ``world_size``, and reports with ``log(step=..., "
    "loss=...)``.\n\nExamples:\n\n    %%ranks\n    %%ranks 0,2\n    %%ranks 1-3 --quiet -o losses\n\nIf you name "
    "ranks, the values are returned as a dict by rank. ``%dist_ranks push x`` sends a variable of the notebook to "
    "the ranks.\n"
)

_UNKNOWN = re.compile(r"name '(\w+)' is not defined")


def parser() -> Parser:
    """Return the parser of the cell magic."""
    made = Parser("%%ranks", _DESCRIPTION, epilog=_EPILOG, usage=" [RANKS]")
    made.add_argument("on", nargs="?", metavar="RANKS", help="For example 0,2 or 1-3 (default: all).")
    made.add_argument("-q", "--quiet", action="store_true", help="Show no output unless the cell fails.")
    made.add_argument("-o", "--out", metavar="NAME", help="Store the values in this variable and do not show them.")
    return made


class RanksMagic:
    """The cell magic of one kernel."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._parser = parser()

    def function(self) -> Callable[..., Any]:
        """Return the function to register; its docstring is the help text."""
        return as_magic("ranks", self.run, self._parser.format_help())

    def run(self, line: str, cell: str) -> Any:
        """Run one cell and return its values, None when there are none. Raises CellFailed."""
        chosen = self._parser.parse(line)
        identifier(chosen.out)
        ranks = self._session.ranks.get()
        on = None if chosen.on is None else ranks_of(chosen.on, ranks.size)
        place = capture.here()
        label = "" if place.execution_count is None else f"In [{place.execution_count}]"

        def run(on_event: EventHandler) -> Answer:
            return ranks.run(cell, on=on, label=label, raw_cell=place.raw, on_event=on_event)

        values = self._shown(ranks, on, run, quiet=chosen.quiet)
        if chosen.out is None:
            return values
        self._session.keep(chosen.out, values)
        return None

    def run_draft(self, draft: CapturedCode) -> Any:
        """Run what ``%%distributed --on-ranks`` captured and return the values. Raises CellFailed."""
        ranks = self._session.ranks.get()
        return self._shown(ranks, None, lambda on_event: ranks.run_distributed(draft, on_event=on_event), quiet=False)

    def _shown(
        self, ranks: Ranks, on: Sequence[int] | None, run: Callable[[EventHandler], Answer], *, quiet: bool
    ) -> Any:
        """Run something on ranks with its output shown; return the values. Raises CellFailed."""
        from distdl_jupyter.ranks import Interrupted
        from distdl_jupyter.ranks.answer import CellFailed, failures
        from distdl_jupyter.widgets.ranks import Values, ValuesOf

        asked = tuple(range(ranks.size)) if on is None else tuple(on)
        output = self._output(asked, ranks, quiet=quiet)
        shown = False
        try:
            answer = run(EventHandler(output, self._hinted))
        except Interrupted as interrupt:
            show_as(interrupt, [f"KeyboardInterrupt: {interrupt}"])
            raise
        finally:
            shown = output.finish()
        errors = {rank: self._hinted(error) for rank, error in answer.errors.items()}
        failed = failures(errors, asked)
        if failed is not None:
            raise CellFailed(failed, errors, shown=shown)
        forms = {rank: done.shown for rank, done in answer.dones.items()}
        if not any(forms.values()):
            return None
        return Values(answer.values, forms) if on is None else ValuesOf(answer.values, forms)

    def _hinted(self, error: dict[str, Any]) -> dict[str, Any]:
        """Return the error with a hint for a name that the notebook has and the rank lacks."""
        found = _UNKNOWN.match(str(error.get("message", ""))) if error.get("type") == "NameError" else None
        if found is None or found[1] not in self._session.ip.user_ns:
            return error
        hint = f"`{found[1]}` is a variable of the notebook. Send it to the ranks with `%dist_ranks push {found[1]}`."
        return {**error, "hint": hint}

    def _output(self, asked: Sequence[int], ranks: Ranks, *, quiet: bool) -> Output:
        from distdl_jupyter.widgets.ranks import CellOutput, PrintedOutput

        if not hasattr(self._session.ip, "kernel"):
            return PrintedOutput(asked, quiet=quiet)
        return CellOutput(asked, short_id(ranks.id), quiet=quiet)


class EventHandler:
    """Hands what a cell's ranks say to its output; ``hinted`` adds to an error what this notebook knows of it."""

    def __init__(self, output: Output, hinted: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._output = output
        self._hinted = hinted

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        from distdl_jupyter import ranks

        if isinstance(event, ranks.Output):
            self._output.add(event.rank, event.stream, event.text)
        elif isinstance(event, ranks.Done):
            self._output.done(event.rank, None if event.error is None else self._hinted(event.error))
        else:
            self._output.say(event.text)
