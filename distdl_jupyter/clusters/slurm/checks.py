"""Checks of a Slurm cluster: commands, controller, test submission, nodes, job folder, and the software of one node."""

from __future__ import annotations

import dataclasses
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from distdl_jupyter import permissions
from distdl_jupyter.clusters import package
from distdl_jupyter.clusters.agents import checkup
from distdl_jupyter.clusters.agents.agent import Host, Unreachable
from distdl_jupyter.clusters.agents.connection import DIRECTORY, TIMEOUT, end_all, start_all
from distdl_jupyter.clusters.base import NodeCheck, NodeInfo
from distdl_jupyter.clusters.slurm import commands, script, text
from distdl_jupyter.clusters.slurm.script import SlurmOptions
from distdl_jupyter.clusters.ssh.cluster import SshProcess
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import new_id

#: Seconds to wait for a free node, Slurm's time limit for the check in minutes, and the check's timeout in seconds.
_WAIT, _MINUTES, _SECONDS = 5, 1, 12.0
#: The name of the checked node until the node itself reports one.
_NODE = "a node"
#: Python code that reads an agent's first program from standard input and runs it.
_FIRST = "import sys;exec(bytes.fromhex(sys.stdin.buffer.raw.readline().decode()))"


def checks(options: SlurmOptions, modules: Sequence[str], programs: Sequence[str]) -> list[NodeCheck]:
    """Return the rows of all checks; check the software of a node only if no other check has failed."""
    if missing := commands.missing_commands():
        problem = "The Slurm commands are not installed on this machine."
        return [NodeCheck("", "Slurm", "error", problem, missing, "slurm-missing")]
    try:
        nodes = [text.node(fields) for fields in commands.nodes(options.partition)]
    except commands.SlurmFailed as error:
        remedy = error.hint or "Check that its controller is running: scontrol ping"
        return [NodeCheck("", "Slurm", "error", error.message, remedy, error.code)]
    rows = [NodeCheck("", "Slurm", "ok", "the controller responds"), _submission(options)]
    rows += [*_nodes(nodes, options), *_container(options), _folder(options)]
    if any(check.level == "error" for check in rows):
        return rows
    return [*rows, *_software(options, modules, programs)]


def _submission(options: SlurmOptions) -> NodeCheck:
    """Test the submission of a job with one process: partition, account, QOS, limits, GPUs and constraints."""
    spec = JobSpec(id=new_id(), name="check", process_count_per_node=1)
    arguments = script.arguments(spec, options, {}, Path("/tmp"), "check.out", "")  # noqa: S108 - never written
    try:
        commands.run("sbatch", "--test-only", *arguments, "--wrap=true")
    except commands.SlurmFailed as error:
        code, remedy = text.refusal(error, options)
        return NodeCheck("", "Submission", "error", error.message, remedy, code)
    return NodeCheck("", "Submission", "ok", f"partition {options.partition or 'by default'} accepts jobs")


def _nodes(nodes: Sequence[NodeInfo], options: SlurmOptions) -> Iterator[NodeCheck]:
    if nodes and all(node.state == "down" for node in nodes):
        remedy = "Ask the administrators, or choose another partition."
        yield NodeCheck("", "Nodes", "error", "no node is up", remedy, "slurm-nodes")
        return
    for node in nodes:
        if node.state == "down":
            remedy = "Until it is up, jobs run on the other nodes."
            yield NodeCheck(node.name, "Node", "warning", node.detail, remedy, "slurm-node")
        else:
            yield NodeCheck(node.name, "Node", "ok", node.detail or node.state)
    max_gpus = max((node.gpus for node in nodes), default=0)
    if max_gpus and not options.gpus:
        message = f"nodes have up to {plural(max_gpus, 'GPU')}, but jobs do not request any"
        yield NodeCheck("", "GPUs", "info", message, f"To use them, set gpus_per_node to {max_gpus}.")


def _container(options: SlurmOptions) -> Iterator[NodeCheck]:
    if options.container_image:
        if reason := script.lacks_containers():
            yield NodeCheck("", "Container", "error", reason, script.CONTAINER_REMEDY, "slurm-container")
        else:
            yield NodeCheck("", "Container", "ok", options.container_image)


def _folder(options: SlurmOptions) -> NodeCheck:
    if not options.directory:
        remedy = "If the nodes do not share that folder, set the option directory."
        return NodeCheck("", "Folder", "info", "the files of jobs are in the jobs folder of this machine", remedy)
    folder = Path(options.directory).expanduser()
    try:
        permissions.user_folder(folder)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = f"{folder} is not writable: {error.strerror}" if error.strerror else str(error)
        remedy = "Set the option directory to a folder that this machine and the nodes share."
        return NodeCheck("", "Folder", "error", reason, remedy, "slurm-folder")
    return NodeCheck("", "Folder", "ok", f"{folder} is writable")


def _software(options: SlurmOptions, modules: Sequence[str], programs: Sequence[str]) -> list[NodeCheck]:
    """Check a free node with an agent that srun starts there."""
    python = options.python or ("python3" if options.container_image else sys.executable)
    selection = {name: getattr(options, name) for name in ("partition", "account", "qos", "constraint")}
    command = [
        "srun", "--quiet", "--unbuffered", "--job-name=distdl-check", "--nodes=1", "--ntasks=1",
        f"--immediate={_WAIT}", f"--time={_MINUTES}", "--mpi=none", "--export=NONE", "--chdir=/",
        *(f"--{name}={value}" for name, value in selection.items() if value), *script.container(options),
        "/bin/bash", "-lc", f'{options.setup}\nexec "$0" -c "$1"', python, _FIRST,
    ]  # fmt: skip
    first = package.first_input(python, DIRECTORY, [TIMEOUT]).partition(b"\n")[2]
    try:
        link = SshProcess(_NODE, command, commands.environment())
        connections = start_all([(Host(_NODE, ""), link)], first)
    except Unreachable as error:
        if re.search("immediate|requested nodes are busy", error.reason, re.IGNORECASE):
            return [NodeCheck("", "Packages", "info", "nodes were not checked: no node is free")]
        remedy = "Check that this command works: srun hostname"
        return [
            NodeCheck("", "Packages", "warning", f"nodes were not checked. {error.reason}", remedy, "slurm-packages")
        ]
    try:
        result = checkup.check_hosts(connections, [], options, modules, programs, seconds=_SECONDS)
    finally:
        end_all(connections)
    name = str(result.facts.get(_NODE, {}).get("host") or _NODE)
    rows = [dataclasses.replace(check, node=name) if check.node == _NODE else check for check in result.checks]
    # srun uses no host keys, one node needs no common network, and the row Folder already covers the files of jobs.
    return [check for check in rows if check.what not in ("Host key", "Network", "Code")]
