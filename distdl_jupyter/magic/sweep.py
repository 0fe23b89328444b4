"""``%%sweep``: a cell as many trials, each with other values of some names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distdl_jupyter.core import space
from distdl_jupyter.form.arguments import SWEEP, job_options, sweep_parser, without_secrets
from distdl_jupyter.magic.cell import captured, identifier
from distdl_jupyter.magic.session import Session, short_errors


class SweepMagic:
    """Run this cell many times with other values, and find the best."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def function(self) -> Callable[[str, str], Any]:
        """Return the function to register; IPython finds its help text by ``getdoc``."""

        def sweep(line: str, cell: str) -> None:
            with short_errors():
                self.run(line, cell)

        sweep.__doc__ = self.__doc__
        sweep.getdoc = lambda: sweep_parser().format_help()  # type: ignore[attr-defined]
        return sweep

    def run(self, line: str, cell: str) -> None:
        """Start the sweep of a cell and show it."""
        from IPython.display import display

        from distdl_jupyter.studies import sweeps

        parser = sweep_parser()
        parser.answer_help(line.split())
        parameters, rest = space.of_line(line)
        chosen = parser.parse(rest)
        out = identifier(getattr(chosen, "out", None))
        options = job_options(chosen, self._session.defaults)
        namespace = {**self._session.ip.user_ns, **space.sample(parameters)}
        draft = captured(cell, namespace, without_secrets(f"%%sweep {rest}").strip())
        plan = {name: getattr(chosen, name) for name in SWEEP if hasattr(chosen, name)}
        found = sweeps.of_draft(draft, parameters, **plan, **options)
        if out:
            self._session.keep(out, found)
        wait = getattr(chosen, "wait", None)
        display(found)  # type: ignore[no-untyped-call]
        if wait or (wait is None and not self._session.somebody_looks()):
            found.wait()
