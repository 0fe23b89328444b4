"""How a cluster that ``stages`` brings data to its nodes: before any rank, or no rank runs at all."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.errors import DataUnavailable
from distdl_jupyter.testing.listener import Listener
from distdl_jupyter.testing.sample import Sample
from distdl_jupyter.testing.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

_READS = """
import os, pathlib
print("found", pathlib.Path(os.environ["DISTDL_DATA_SAMPLE"], "hello").read_text())
"""
_MARKS = """
import os, pathlib
pathlib.Path(os.environ["DISTDL_JOB_DIR"], "outputs", "ran-" + os.environ["RANK"]).touch()
"""


class _Wanted(Exception):
    """Somebody wants it to end."""


@dataclass
class PathStaging:
    """A real staging (see ``clusters.base.Staging``) of one folder that every node sees.

    With ``endless`` it is a blob instead whose signature never comes, so that stagers wait until they are ended.
    """

    path: Path
    endless: bool = False
    what: str = "data"
    ordered: list[int] = field(default_factory=list)
    staged: list[int] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)

    def order(self, node: int, *, base: str = "") -> dict[str, Any]:
        """Return the order of a node."""
        self.ordered.append(node)
        source: dict[str, Any] = {"name": "sample", "variable": "DISTDL_DATA_SAMPLE"}
        if self.endless:
            source |= {"kind": "blob", "address": "https://127.0.0.1:9/nobody/data", "prefix": "x",
                       "items": [["x/hello", 5, "0x1", ""]]}  # fmt: skip
        else:
            source |= {"kind": "path", "path": str(self.path), "fingerprint": None}
        return {"job": self.path.parent.name, "node": node, "base": base, "limit_bytes": None, "workers": 2,
                "ca": "", "sources": [source]}  # fmt: skip

    def on_message(self, node: int, host: str, message: dict[str, Any]) -> dict[str, Any] | None:
        """Take a message."""
        if message["type"] == "failed":
            raise DataUnavailable(
                f"{host}: {message['text']}", code="data-staging-failed", hint=str(message.get("remedy") or "")
            )
        if message["type"] == "staged":
            self.staged.append(node)
        if message["type"] == "renew":
            self.asked.set()
        return None


class DataContract(Subject):
    """Data is on every node before any rank starts; without it no rank runs; whoever cancels is heard at once."""

    def data(self, sample: Sample) -> Path:
        """Return a folder that all nodes see; it need not exist."""
        return sample.folder.path / "data"

    def _sample(self, code: str, *, endless: bool = False) -> tuple[Sample, PathStaging]:
        sample = self.sample(code)
        staging = PathStaging(self.data(sample), endless)
        sample.context.staging = staging
        return sample, staging

    @contextlib.contextmanager
    def _started(self, sample: Sample) -> Iterator[Listener]:
        listener = Listener(sample.start(), sample.nonce)
        try:
            yield listener
        finally:
            listener.close()
            self.leaves_nothing(sample.id)

    def test_it_says_that_it_stages(self) -> None:
        """What it says decides whether a job with data is taken at all."""
        assert self.cluster.stages

    def test_every_rank_finds_its_data_when_it_starts(self) -> None:
        """Ranks read at once; one that comes too early would fail, or train on half of the data."""
        sample, staging = self._sample(_READS)
        self.data(sample).mkdir()
        (self.data(sample) / "hello").write_text("world")
        with self._started(sample) as listener:
            listener.until_ended(self.ranks, self.timeout)
            for rank in range(self.ranks):
                assert "found world" in listener.said(rank), listener.lines
        assert sorted(staging.ordered) == list(range(self.node_count)), "each node must get exactly one staging order"
        assert sorted(staging.staged) == list(range(self.node_count)), (
            "the end of staging was not reported for these nodes"
        )

    def test_without_its_data_no_rank_runs(self) -> None:
        """A job that trains without its data costs more than one that fails."""
        sample, _ = self._sample(_MARKS)
        said = []
        try:
            with self._started(sample) as listener:
                listener.until_ended(self.ranks, self.timeout)
                assert all(exit_.code != 0 for exit_ in listener.exits.values()), "ranks started without their data"
                said += [exit_.evidence for exit_ in listener.exits.values()]
        except DataUnavailable as error:
            said.append(str(error))
        assert any(str(self.data(sample)) in text for text in said), (
            f"the messages do not name the missing data: {said}"
        )
        assert not list(sample.folder.outputs.glob("ran-*"))
        self.leaves_nothing(sample.id)

    def test_whoever_cancels_while_data_is_on_its_way_is_heard(self) -> None:
        """Bringing data may take hours."""
        sample, staging = self._sample(_MARKS, endless=True)

        def report(_phase: str, _detail: str) -> None:
            if staging.asked.is_set():
                raise _Wanted

        sample.context.report = report
        with contextlib.suppress(_Wanted), self._started(sample) as listener:
            listener.until(staging.asked.is_set, self.timeout, "a request from a stager")
            listener.run.signal("TERM")
            listener.until_ended(self.ranks, self.timeout)
        assert staging.asked.is_set()
        assert not list(sample.folder.outputs.glob("ran-*"))
        self.leaves_nothing(sample.id)
