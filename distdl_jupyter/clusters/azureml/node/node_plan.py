"""What a process of an Azure ML job is given: the job's plan, who it is, and what only the node itself can fill in.

The plan was made before the platform chose the nodes, so it holds words such as ``@address@`` in the place of what is
not known yet. Nothing here starts a process of the job.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from distdl_jupyter.clusters.azureml.node import rendezvous
from distdl_jupyter.clusters.azureml.node.rendezvous import Rendezvous
from distdl_jupyter.node.ports import Ports

#: Words for an address of node 0, the network and this node's interface there, and how many cores a rank has.
ADDRESS, NETWORK, INTERFACE, CORES = "@address@", "@network@", "@interface@", "@cores@"


def port(number: int) -> str:
    """Return the word for the job's port number 0, 1, ... on node 0."""
    return f"@port-{number}@"


def rank_address(rank: int) -> str:
    """Return the word for the address of a rank's own node."""
    return f"@rank-{rank}-address@"


def rank_port(rank: int, number: int) -> str:
    """Return the word for a rank's own port number 0, 1, ..."""
    return f"@rank-{rank}-port-{number}@"


class Who(NamedTuple):
    """One process as Azure ML started it; ``local_rank`` None where it does not say."""

    rank: int
    world_size: int
    local_rank: int | None


def who(environment: Mapping[str, str]) -> Who:
    """Return which process this is; the first of one where nothing says so. Raises ValueError."""
    for names in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
                  ("RANK", "WORLD_SIZE", "LOCAL_RANK")):  # fmt: skip
        if names[0] in environment:
            rank, size, local = (environment.get(name) for name in names)
            return Who(int(rank or 0), int(size or 1), None if local is None else int(local))
    return _of_tensorflow(json.loads(environment["TF_CONFIG"])) if "TF_CONFIG" in environment else Who(0, 1, None)


def _of_tensorflow(config: Mapping[str, Mapping[str, object]]) -> Who:
    task, order = config["task"], _workers(config)
    return Who(list(order).index((str(task["type"]), int(str(task["index"])))), len(order), None)


def _workers(config: Mapping[str, Mapping[str, object]]) -> dict[tuple[str, int], str]:
    """Return where TensorFlow's workers listen, in the order of the ranks: {("worker", 0): "10.0.0.4:2222"}."""
    found: dict[tuple[str, int], str] = {}
    for kind in ("chief", "worker"):
        addresses: Any = config["cluster"].get(kind) or ()
        found |= {(kind, at): str(where) for at, where in enumerate(addresses)}
    return found


def endpoints(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the words for each rank's own address and port, which Azure ML tells for TensorFlow alone."""
    config = json.loads(environment.get("TF_CONFIG") or '{"cluster": {}}')
    found: dict[str, str] = {}
    for rank, where in enumerate(_workers(config).values()):
        address, _, port = where.rpartition(":")
        found |= {rank_address(rank): address, rank_port(rank, 0): port}
    return found


class NodePlan:
    """What a process knows before its rank starts: the plan, and the words that only this node can fill in."""

    def __init__(self, folder: Path, one: Who) -> None:
        self.folder = folder
        self.plan: dict[str, Any] = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        if one.world_size != (1 if self.leads_alone else self.plan["ranks"]):
            raise ValueError(f"Azure ML started {one.world_size} processes, but the job has {self.plan['ranks']} ranks")
        self.one = one
        self.node = os.uname().nodename
        self._cores = str(max(1, (os.cpu_count() or 1) // self.plan["per_node"]))
        self.ports = Ports()
        self.words = endpoints(os.environ) | {CORES: self._cores}

    @property
    def leads_alone(self) -> bool:
        """Whether Azure ML starts this process alone: with Ray the other nodes lend their machines to its head."""
        return bool(self.plan["distribution"] == "ray")

    def learn(self, found: Rendezvous) -> None:
        """Take in where the ranks meet."""
        own = rendezvous.own_address(found.address)
        self.words = {
            ADDRESS: found.address,
            NETWORK: found.network,
            INTERFACE: rendezvous.interface(own),
            CORES: self._cores,
            **{port(number): str(one) for number, one in enumerate(found.ports)},
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
        return [sys.executable, "-P", "-m", "distdl_jupyter.worker"]

    def variables(self, own: dict[str, str]) -> dict[str, str]:
        """Return the environment of the rank; ``own`` holds the folders of its data."""
        found: dict[str, str] = self.common() | self.of_rank(self.one.rank) | own | {"DISTDL_JOB_DIR": str(self.folder)}
        if self.one.local_rank is not None:
            found |= dict.fromkeys(("DISTDL_LOCAL_RANK", "LOCAL_RANK"), str(self.one.local_rank))
        return found


def _gpus(wanted: Mapping[str, str], given: str) -> dict[str, str]:
    """Return the variables of GPUs with the platform's numbers: GPU 1 of the plan is the second one that was given."""
    devices = given.split(",") if given else []
    found = {}
    for name in ("CUDA_VISIBLE_DEVICES", "DISTDL_GPU"):
        numbers = wanted.get(name, "").split(",")
        if devices and all(number.isdigit() and int(number) < len(devices) for number in numbers):
            found[name] = ",".join(devices[int(number)] for number in numbers)
    return found
