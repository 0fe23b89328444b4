"""The traits of the launch form that are about data: rows, the place for outputs, and what is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import traitlets

from distdl_jupyter.core.data import DataSource
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.form import datanow, datarows
from distdl_jupyter.form.datarows import Row
from distdl_jupyter.preflight import Check


class DataFields(traitlets.HasTraits):
    """Sources as rows, each as it was typed, and where outputs go."""

    data: traitlets.List[Any] = traitlets.List(traitlets.Dict()).tag(sync=True, chosen=True)
    outputs = traitlets.Unicode("").tag(sync=True, chosen=True)
    data_now = traitlets.Dict().tag(sync=True)

    #: The folder that local paths begin in; without one it is the folder that the job will work in.
    directory: str = ""
    #: Seconds that an answer waits for what lies at a place of which nothing is known yet: enough for most folders.
    blink = 0.2

    @traitlets.validate("data")
    def _unsigned_rows(self, proposal: traitlets.Bunch) -> list[Row]:
        return datarows.kept(proposal["value"])

    @traitlets.validate("outputs")
    def _unsigned_place(self, proposal: traitlets.Bunch) -> str:
        return datarows.unsigned(proposal["value"])

    def data_options(self) -> dict[str, Any]:
        """Return ``data`` and ``outputs`` as ``submit`` takes them, None for none; what is wrong is refused there."""
        return {"data": datarows.words(self.data) or None, "outputs": self.outputs.strip() or None}

    def readable_data(self) -> dict[str, Any]:
        """Return them without what cannot be read, for a magic line."""
        return {"data": datarows.readable(self.data), "outputs": datarows.readable_target(self.outputs)}

    def look_at_data(self, compute_target: str, nodes: int, working_directory: str, *, fresh: bool) -> None:
        """Show what is known of the places now; a look at one goes on by itself. ``fresh`` begins new ones."""
        cluster = datanow.cluster(compute_target)
        directory = Path(self.directory or working_directory or Path.cwd())
        where = datanow.Where(cluster, nodes, directory, self.blink, fresh) if cluster else None
        self.data_now = datanow.shown(self.data, self.outputs, where)

    def data_checks(self) -> list[Check]:
        """Return the check of what is known of them, [] without any."""
        return datanow.checks(self.data_now)


def sources_of(words: Sequence[str] | None) -> tuple[DataSource, ...]:
    """Return the sources of ``data_options``, () when one of them is wrong, which stands beside its row."""
    from distdl_jupyter.core.data import sources

    try:
        return sources(words)
    except InvalidSpec:
        return ()
