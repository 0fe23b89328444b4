"""Which of the user's persistent ranks the magics of one kernel talk to.

Those that it started or was attached to; else those that are still alive from before, such as from before the kernel
was restarted. Ranks belong to no kernel: nothing here ends them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdl_jupyter.core.errors import JobNotFound
from distdl_jupyter.core.humanize import plural, short_id

if TYPE_CHECKING:
    from distdl_jupyter.ranks import Ranks


class CurrentRanks:
    """The ranks of one kernel."""

    def __init__(self) -> None:
        self._chosen: Ranks | None = None

    def choose(self, ranks: Ranks) -> Ranks:
        """Talk to these from now on."""
        self._chosen = ranks
        return ranks

    def own(self) -> Ranks | None:
        """Return the ranks that this kernel talks to when they are alive."""
        return self._chosen if self._chosen is not None and self._chosen.state() != "ended" else None

    def find(self) -> Ranks | None:
        """Return the ranks to talk to: the kernel's own, else the newest of the user's, else None."""
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
        """Return the ranks to talk to; ranks from before are told of once. Raises JobNotFound when there are none.

        The kernel's own are returned even when they have ended: whoever asks them anything is told how.
        """
        if self._chosen is not None:
            return self._chosen
        found = self.find()
        if found is None:
            raise JobNotFound("No ranks are running.", code="no-ranks", hint="Start two with: %dist_ranks start -p 2")
        _say(
            f"Using {plural(found.size, 'rank')} started earlier ({short_id(found.id)}). Variables in their "
            "namespaces are kept."
        )
        return self.choose(found)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a cell's output
