"""Checks a Slurm cluster: commands, controller, a test submission, nodes, folder, and the software of a node."""

from __future__ import annotations

import base64
import functools
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter import permissions
from distdl_jupyter.clusters import package
from distdl_jupyter.clusters.agents import checkup
from distdl_jupyter.clusters.agents.checks import SOFTWARE, HostReport, Survey, row
from distdl_jupyter.clusters.base import CheckLevel, NodeCheck
from distdl_jupyter.clusters.slurm import commands, script, text
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import new_id
from distdl_jupyter.worker.hooks.frameworks import COMPARED

if TYPE_CHECKING:
    from distdl_jupyter.clusters.base import NodeInfo
    from distdl_jupyter.clusters.slurm.script import SlurmOptions

#: Seconds to wait for a free node, and the time limit of the check there in minutes.
_WAIT, _MINUTES = 5, 1
#: Line 1 of its input is this package in base64, line 2 the arguments of ``gather``. It prints a mark and the answer.
_GATHER = (
    "import base64, json, os, sys, tempfile; "
    "f, path = tempfile.mkstemp(suffix='.zip'); os.write(f, base64.b64decode(sys.stdin.readline())); "
    "sys.path.insert(0, path); from distdl_jupyter.node import facts; "
    "found = facts.gather(*json.loads(sys.stdin.readline())); os.unlink(path); "
    "print('\\nDISTDL-FACTS' + json.dumps(found))"
)
#: The row and the level of each problem.
_PROBLEMS: dict[str, tuple[str, CheckLevel]] = {
    "slurm-missing": ("Slurm", "error"),
    "slurm-nodes": ("Nodes", "error"),
    "slurm-node": ("Node", "warning"),
    "slurm-container": ("Container", "error"),
    "slurm-folder": ("Folder", "error"),
    "slurm-packages": ("Packages", "warning"),
}
problem = functools.partial(row, _PROBLEMS)


def checks(options: SlurmOptions, modules: Sequence[str], programs: Sequence[str]) -> list[NodeCheck]:
    """Return the rows by importance; a node is only checked if everything else has passed."""
    if missing := commands.missing_commands():
        return [problem("slurm-missing", "", "The Slurm commands are not installed on this machine.", missing)]
    try:
        nodes = [text.node(fields) for fields in commands.nodes(options.partition)]
    except commands.SlurmFailed as error:
        remedy = error.hint or "Check that its controller is running: scontrol ping"
        return [NodeCheck("", "Slurm", "error", error.message, remedy, code=error.code)]
    rows = [NodeCheck("", "Slurm", "ok", "the controller responds"), _submission(options)]
    rows += [*_nodes(nodes), *_gpus(options, nodes), *_container(options), _folder(options)]
    if any(check.level == "error" for check in rows):
        return rows
    return [*rows, *_software(options, modules, programs)]


def _submission(options: SlurmOptions) -> NodeCheck:
    """Make Slurm test a job of one process: partition, account, QOS, limits, GPUs and constraints."""
    spec = JobSpec(id=new_id(), name="check", process_count_per_node=1)
    arguments = script.arguments(spec, options, {}, Path("/tmp"), "check.out", "")  # noqa: S108 - never written
    try:
        commands.run("sbatch", "--test-only", *arguments, "--wrap=true")
    except commands.SlurmFailed as error:
        code, remedy = text.refusal(error, options)
        return NodeCheck("", "Submission", "error", error.message, remedy, code=code)
    return NodeCheck("", "Submission", "ok", f"partition {options.partition or 'by default'} accepts jobs")


def _nodes(nodes: Sequence[NodeInfo]) -> list[NodeCheck]:
    if nodes and all(node.state == "down" for node in nodes):
        return [problem("slurm-nodes", "", "no node is up", "Ask the administrators, or choose another partition.")]
    return [
        problem("slurm-node", node.name, node.detail, "Until it is up, jobs run on the other nodes.")
        if node.state == "down"
        else NodeCheck(node.name, "Node", "ok", node.detail or node.state)
        for node in nodes
    ]


def _gpus(options: SlurmOptions, nodes: Sequence[NodeInfo]) -> list[NodeCheck]:
    most = max((node.gpus for node in nodes), default=0)
    if not most or options.gpus:
        return []
    message = f"nodes have up to {plural(most, 'GPU')}, but jobs do not request any"
    return [NodeCheck("", "GPUs", "info", message, f"To use them, set gpus_per_node to {most}.")]


def _container(options: SlurmOptions) -> list[NodeCheck]:
    if not options.container_image:
        return []
    if reason := script.lacks_containers():
        return [problem("slurm-container", "", reason, script.CONTAINER_REMEDY)]
    return [NodeCheck("", "Container", "ok", options.container_image)]


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
        return problem("slurm-folder", "", reason, remedy)
    return NodeCheck("", "Folder", "ok", f"{folder} is writable")


def _software(options: SlurmOptions, modules: Sequence[str], programs: Sequence[str]) -> list[NodeCheck]:
    """Check Python, packages and programs of a free node with ``srun``, by the rules for all hosts."""
    modules = checkup.with_required(modules)
    try:
        facts = _facts(options, modules, programs)
    except commands.SlurmFailed as error:
        is_busy = re.search("immediate|requested nodes are busy", error.message, re.IGNORECASE)
        if is_busy:
            return [NodeCheck("", "Packages", "info", "nodes were not checked: no node is free")]
        remedy = "Check that this command works: srun hostname"
        return [problem("slurm-packages", "", f"nodes were not checked: {error.message}", remedy)]
    report = HostReport(str(facts.get("host", "")), checkup.complete(facts))
    survey = Survey([report], checkup.here(modules), modules, programs)
    return [check for rule in SOFTWARE for check in rule(survey)]


def _facts(options: SlurmOptions, modules: Sequence[str], programs: Sequence[str]) -> dict[str, Any]:
    """Return the facts of one node. Raises SlurmFailed, also if no node is free."""
    python = options.python or ("python3" if options.container_image else sys.executable)
    only = {name: getattr(options, name) for name in ("partition", "account", "qos", "constraint")}
    output = commands.run(
        "srun", "--quiet", "--job-name=distdl-look", "--nodes=1", "--ntasks=1", f"--immediate={_WAIT}",
        f"--time={_MINUTES}", "--mpi=none", "--export=NONE", "--chdir=/",
        *(f"--{name}={value}" for name, value in only.items() if value), *script.container(options),
        "/bin/bash", "-lc", f'{options.setup}\nexec "$0" -c "$1"', python, _GATHER,
        stdin=f"{base64.b64encode(package.built().content).decode()}\n{json.dumps([modules, programs, COMPARED])}\n",
    )  # fmt: skip
    match = re.search(r"^DISTDL-FACTS(\{.*)$", output, re.MULTILINE)
    if match is None:
        raise commands.SlurmFailed("Python on the node did not report the check results.")
    facts: dict[str, Any] = json.loads(match[1])
    return facts
