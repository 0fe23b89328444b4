"""Whether a Slurm cluster can run jobs: commands, controller, partition, nodes, limits, folders."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distdl_jupyter.clusters.base import Check
from distdl_jupyter.clusters.slurm import accounting, commands, probe, script, sinfo, words
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.node import permissions

if TYPE_CHECKING:
    from distdl_jupyter.clusters.base import NodeInfo
    from distdl_jupyter.clusters.slurm.options import SlurmOptions
    from distdl_jupyter.clusters.slurm.sinfo import Partition


def checked(options: SlurmOptions, modules: Sequence[str], programs: Sequence[str]) -> list[Check]:
    """Return what was looked at, in the order in which it matters."""
    if lacking := commands.absent():
        return [
            Check(
                "",
                "Slurm",
                "error",
                "The Slurm commands are not installed on this machine.",
                lacking,
                code="slurm-missing",
            )
        ]
    try:
        partitions = sinfo.partitions()
        nodes = [words.node(node) for node in sinfo.nodes(options.partition)]
    except commands.SlurmFailed as error:
        remedy = error.hint or "Check that its controller is running: scontrol ping"
        return [Check("", "Slurm", "error", error.message, remedy, code=error.code)]
    found = [Check("", "Slurm", "ok", "the controller responds"), *_partition(options, partitions)]
    found += [*_account(options), *_nodes(nodes), *_gpus(options, nodes), *_container(options), _folder(options)]
    if any(check.level == "error" for check in found):
        return found
    return [*found, *probe.look(options, _python(options), modules, programs)]


def _python(options: SlurmOptions) -> str:
    return options.python or ("python3" if options.container_image else sys.executable)


def _partition(options: SlurmOptions, partitions: Sequence[Partition]) -> list[Check]:
    names = ", ".join(partition.name for partition in partitions)
    if options.partition:
        chosen = next((one for one in partitions if one.name == options.partition.split(",")[0]), None)
    else:
        chosen = next((one for one in partitions if one.default), None)
    if chosen is None:
        if options.partition:
            says, code = f"unknown partition {options.partition}", "slurm-partition-unknown"
        else:
            says, code = "Slurm has no default partition", "slurm-no-default-partition"
        return [Check("", "Partition", "error", says, f"Set the option partition to one of: {names}.", code=code)]
    if not chosen.up:
        return [
            Check(
                "",
                "Partition",
                "error",
                f"{chosen.name} is down",
                f"Wait, or set the option partition to one of: {names}.",
                code="slurm-partition-down",
            )
        ]
    return [Check("", "Partition", "ok", f"{chosen.name}, {plural(chosen.nodes, 'node')}"), *_limit(options, chosen)]


def _limit(options: SlurmOptions, partition: Partition) -> list[Check]:
    wanted = sinfo.minutes(options.time_limit)
    if partition.time_limit is None:
        return []
    if wanted is not None and wanted > partition.time_limit:
        says = f"{options.time_limit} exceeds the limit of {partition.name} ({partition.time_limit} minutes)"
        return [
            Check(
                "",
                "Time limit",
                "error",
                says,
                f"Set time_limit to {partition.time_limit} or less.",
                code="slurm-time-limit",
            )
        ]
    return [Check("", "Time limit", "ok", f"{partition.name} allows {plural(partition.time_limit, 'minute')}")]


def _account(options: SlurmOptions) -> list[Check]:
    try:
        allowed = accounting.allowed(options.partition)
    except commands.SlurmFailed as error:
        return [Check("", "Account", "info", f"account and QOS were not checked: {error.message}")]
    if allowed is None:
        return []
    field, says, remedy = allowed.refusal(options)
    if field:
        return [Check("", "Account" if field == "account" else "QOS", "error", says, remedy, code="slurm-account")]
    return [Check("", "Account", "ok", options.account or f"your accounts: {', '.join(allowed.accounts)}")]


def _container(options: SlurmOptions) -> list[Check]:
    if not options.container_image:
        return []
    lacking = script.lacks_containers()
    if lacking:
        return [Check("", "Container", "error", lacking, script.CONTAINER_REMEDY, code="slurm-container")]
    return [Check("", "Container", "ok", options.container_image)]


def _nodes(nodes: Sequence[NodeInfo]) -> list[Check]:
    if nodes and all(node.state == "down" for node in nodes):
        return [
            Check(
                "",
                "Nodes",
                "error",
                "no node is up",
                "Ask the administrators, or choose another partition.",
                code="slurm-nodes",
            )
        ]
    return [
        Check(
            node.name,
            "Node",
            "warning" if node.state == "down" else "ok",
            node.detail or node.state,
            "Until it is up, jobs run on the other nodes." if node.state == "down" else "",
            code="slurm-node",
        )
        for node in nodes
    ]


def _gpus(options: SlurmOptions, nodes: Sequence[NodeInfo]) -> list[Check]:
    most = max((node.gpus for node in nodes), default=0)
    if options.gpus > most:
        return [
            Check(
                "",
                "GPUs",
                "error",
                f"gpus_per_node is {options.gpus_per_node}, but nodes have at most {most}",
                "Lower gpus_per_node, or set another partition.",
                code="slurm-gpus",
            )
        ]
    if most and not options.gpus:
        return [Check("", "GPUs", "info", f"nodes have up to {plural(most, 'GPU')}, but jobs do not request any",
                      f"To use them, set gpus_per_node to {most}.")]  # fmt: skip
    return []


def _folder(options: SlurmOptions) -> Check:
    if not options.directory:
        return Check("", "Folder", "info", "the files of jobs are in the jobs folder of this machine",
                     "If the nodes do not share that folder, set the option directory.")  # fmt: skip
    folder = Path(options.directory).expanduser()
    try:
        permissions.chosen(folder)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        why = f"{folder} is not writable: {error.strerror}" if error.strerror else str(error)
        return Check(
            "",
            "Folder",
            "error",
            why,
            "Set the option directory to a folder that this machine and the nodes share.",
            code="slurm-folder",
        )
    return Check("", "Folder", "ok", f"{folder} is writable")
