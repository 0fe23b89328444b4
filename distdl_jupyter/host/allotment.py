"""What a process that a platform starts is given: the job's plan, and what only the node itself can fill into it.

The plan was made before the platform chose the nodes, so it holds words such as ``@address@`` (``LATE_...`` in
``core.plan``). Nothing here starts a process of the job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distdl_jupyter.host import meeting
from distdl_jupyter.host.meeting import Meeting
from distdl_jupyter.host.ports import Ports


class Place:
    """What a process knows before its rank starts: the plan, and the words that only this node can fill in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan: dict[str, Any] = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        self.node = os.uname().nodename
        self.words: dict[str, str] = {}
        self._ports = Ports()

    def learn(self, found: Meeting) -> None:
        """Take in where the ranks meet."""
        own = meeting.own_address(found.address)
        self.words = {
            "@address@": found.address,
            "@network@": found.network,
            "@interface@": meeting.interface(own),
            "@cores@": str(max(1, (os.cpu_count() or 1) // self.plan["per_node"])),
            **{f"@port-{number}@": str(port) for number, port in enumerate(found.ports)},
        }

    def fill(self, text: str) -> str:
        """Return the text with this node's own words in it."""
        for word, value in self.words.items():
            text = text.replace(word, value)
        return text

    def filled(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return variables with this node's own words in their values."""
        return {name: self.fill(value) for name, value in variables.items()}

    def common(self) -> dict[str, str]:
        """Return the environment of every process of the job here."""
        return {**os.environ, **self.plan["common"]}

    def of_rank(self, rank: int) -> dict[str, str]:
        """Return the variables of one rank's own."""
        own = self.filled(self.plan["environments"][rank])
        return own | {"DISTDL_HOST": self.node} | _gpus(own, os.environ.get("CUDA_VISIBLE_DEVICES", ""))

    def worker(self) -> list[str]:
        """Return the command line of a rank."""
        return [self.plan["python"], "-P", "-m", "distdl_jupyter.worker"]


def _gpus(wanted: Mapping[str, str], given: str) -> dict[str, str]:
    """Return the variables of GPUs with the platform's numbers: GPU 1 of the plan is the second one that was given."""
    devices = given.split(",") if given else []
    found = {}
    for name in ("CUDA_VISIBLE_DEVICES", "DISTDL_GPU"):
        numbers = wanted.get(name, "").split(",")
        if devices and all(number.isdigit() and int(number) < len(devices) for number in numbers):
            found[name] = ",".join(devices[int(number)] for number in numbers)
    return found
