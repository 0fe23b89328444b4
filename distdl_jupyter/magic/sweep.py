"""``%%sweep``: a cell as many trials, each with other values of some names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from distdl_jupyter.core import space
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.form.arguments import SWEEP, job_options, sweep_parser, without_secrets
from distdl_jupyter.magic.cell import captured, identifier
from distdl_jupyter.magic.session import Session, short_errors, shown_as

#: A name with its values, at the start of what is left of the line: a call may hold blanks.
_PARAMETER = re.compile(r"\s*([A-Za-z_]\w*)=(\w+\([^()]*\)|\[[^\]]*\]|[^\s'\"]+|'[^']*'|\"[^\"]*\")(?=\s|$)")


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
        from distdl_jupyter import sweeps

        parameters, rest = parameters_of(line)
        chosen = sweep_parser().parse(rest)
        out = identifier(getattr(chosen, "out", None))
        options = job_options(chosen, self._session.defaults)
        namespace = {**self._session.ip.user_ns, **space.sample(parameters)}
        draft = captured(cell, namespace, without_secrets(f"%%sweep {rest}").strip())
        plan = {name: getattr(chosen, name) for name in SWEEP if hasattr(chosen, name)}
        found = sweeps.of_draft(draft, parameters, **plan, **options)
        if out:
            self._session.keep(out, found)
        wait = getattr(chosen, "wait", None)
        found._ipython_display_()
        if wait or (wait is None and not self._session.somebody_looks()):
            try:
                found.wait()
            except KeyboardInterrupt as error:
                shown_as(error, [sweeps.stopped_hint(found)])
                raise


def parameters_of(line: str) -> tuple[space.Space, str]:
    """Return what is varied, and the flags behind it. Raises InvalidSpec."""
    found: dict[str, Any] = {}
    while said := _PARAMETER.match(line):
        found[said[1]] = space.parsed(said[1], said[2].strip("'\""))
        line = line[said.end() :]
    if not found:
        raise InvalidSpec("%%sweep takes first what is varied.", field="parameters",
                          hint="Example: %%sweep lr=loguniform(1e-4,1e-1) width=64,128 --metric loss.")  # fmt: skip
    return space.checked(found), line
