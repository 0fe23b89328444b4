"""A small real job of a script, made without a supervisor, so that a cluster is spoken to directly.

It knows nothing of tests; the contract and ``orphan`` share it.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.base import Context
from distdl_jupyter.clusters.environment import HASH_SEED
from distdl_jupyter.core import registry
from distdl_jupyter.core.plan import Placement, Plan
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore, new_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdl_jupyter.clusters.base import Cluster, Report, Run
    from distdl_jupyter.core.plan import Service


#: A script that saves its work when it is interrupted, and chooses its exit code.
SAVES = """
import sys, time
try:
    print("here")
    time.sleep(600)
except KeyboardInterrupt:
    print("saved")
    sys.exit(5)
"""


def _ignore(_phase: str, _detail: str) -> None:
    """Nobody listens."""


@dataclass
class Sample:
    """One job of ``code``: a folder, a spec, a context; ``start`` places and starts it."""

    name: str
    options: Mapping[str, Any]
    code: str
    node_count: int = 1
    process_count_per_node: int = 2
    #: The user's environment variables.
    variables: Mapping[str, str] = field(default_factory=dict)
    services: tuple[Service, ...] = ()
    report: Report = _ignore
    id: str = ""
    nonce: str = ""

    def __post_init__(self) -> None:
        self.cluster: Cluster = registry.get("clusters", self.name)
        self.checked = registry.check_options("clusters", self.name, dict(self.options))
        self.nonce = self.nonce or secrets.token_hex(8)
        store = JobStore()
        self.folder = store.find(self.id) if self.id else store.publish(store.prepare(new_id()))
        self.id = self.folder.id
        self.spec = JobSpec(
            id=self.id,
            name="contract",
            kind="script",
            node_count=self.node_count,
            process_count_per_node=self.process_count_per_node,
            compute_target=self.name,
            cluster_options=dict(self.options),
            environment_variables=dict(self.variables),
            python=sys.executable,
            working_directory=str(self.folder.path),
        )
        self.context = Context(self.folder, self._own(), dict(_inherited()), report=self.report)
        self._write()

    def _own(self) -> dict[str, str]:
        return {
            "DISTDL_JOB_ID": self.id,
            "DISTDL_JOB_DIR": str(self.folder.path),
            "DISTDL_NONCE": self.nonce,
            "PYTHONUNBUFFERED": "1",
            **HASH_SEED,
            **self.variables,
        }

    def _write(self) -> None:
        script = self.folder.path / "script.py"
        script.write_text(self.code, encoding="utf-8")
        self.folder.spec_file.write_text(self.spec.dumps(), encoding="utf-8")
        payload = {
            "format": 1,
            "kind": "script",
            "script": str(script),
            "arguments": [],
            "path": [],
            "names": [],
            "sources": {},
            "working_directory": str(self.folder.path),
        }
        (self.folder.path / "payload.json").write_text(json.dumps(payload), encoding="utf-8")

    def place(self, ports: int = 1, rank_ports: int = 0) -> Placement:
        """Place the ranks with ports for all of them on node 0, and for each on its own node."""
        self.context.rank_ports = rank_ports
        return self.cluster.place(self.spec, ports, self.checked, self.context)

    def start(self, placement: Placement | None = None) -> Run:
        """Start the ranks; each has its number in RANK."""
        placement = placement or self.place()
        plan = Plan(tuple({"RANK": str(place.rank)} for place in placement.ranks), services=self.services)
        return self.cluster.start(self.spec, placement, plan, self.context)


def _inherited() -> dict[str, str]:
    kept = ("DISTDL_CACHE",)
    return {name: value for name, value in os.environ.items() if not name.startswith("DISTDL_") or name in kept}
