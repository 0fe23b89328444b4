"""A look at one free node of a Slurm cluster: what of Python and of a backend's packages is there.

It runs as a small job of ``srun``, which waits for no busy node. What is sent there goes over its standard input.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters import package
from distdl_jupyter.clusters.agents.software import READS_DATA
from distdl_jupyter.clusters.base import Check, CheckLevel
from distdl_jupyter.clusters.slurm import commands, script
from distdl_jupyter.core.machine import installed_version

if TYPE_CHECKING:
    from distdl_jupyter.clusters.slurm.options import SlurmOptions

#: Seconds that a node is waited for, and minutes that the look may take there.
_WAIT, _MINUTES = 5, 1
#: The worker cannot open what was captured without it.
_ALWAYS = ("cloudpickle", READS_DATA)

#: Line 1 of its input is this package as base64, line 2 the questions; the answer stands behind a mark.
_ASK = (
    "import base64, json, os, sys, tempfile; "
    "f, path = tempfile.mkstemp(suffix='.zip'); os.write(f, base64.b64decode(sys.stdin.readline())); "
    "sys.path.insert(0, path); from distdl_jupyter.node import facts; "
    "found = facts.gather(*json.loads(sys.stdin.readline())); os.unlink(path); "
    "print('\\nDISTDL-FACTS' + json.dumps(found))"
)


def look(options: SlurmOptions, python: str, modules: Sequence[str], programs: Sequence[str]) -> list[Check]:
    """Return what was seen on one node as rows; one row that says why when no node could be looked at."""
    wanted = list(dict.fromkeys((*_ALWAYS, *modules)))
    try:
        facts = _facts(options, python, wanted, programs)
    except commands.SlurmFailed as error:
        busy = "immediate" in error.message.lower() or "requested nodes are busy" in error.message.lower()
        says = "no node is free" if busy else error.message
        return [
            Check(
                "",
                "Packages",
                "info" if busy else "warning",
                f"nodes were not checked: {says}",
                "" if busy else "Check that this command works: srun hostname",
                code="slurm-packages",
            )
        ]
    return _rows(facts, python, wanted, programs)


def _facts(options: SlurmOptions, python: str, modules: Sequence[str], programs: Sequence[str]) -> dict[str, Any]:
    where = {"partition": options.partition, "account": options.account, "qos": options.qos,
             "constraint": options.constraint}  # fmt: skip
    said = commands.run(
        "srun", "--quiet", "--job-name=distdl-look", "--nodes=1", "--ntasks=1", f"--immediate={_WAIT}",
        f"--time={_MINUTES}", "--mpi=none", "--export=NONE", "--chdir=/",
        *(f"--{name}={value}" for name, value in where.items() if value), *script.container(options),
        "/bin/bash", "-lc", f'{options.setup}\nexec "$0" -c "$1"', python, _ASK,
        given=f"{base64.b64encode(package.built().content).decode()}\n{json.dumps([modules, list(programs)])}\n",
    )  # fmt: skip
    found = re.search(r"^DISTDL-FACTS(\{.*)$", said, re.MULTILINE)
    if found is None:
        raise commands.SlurmFailed("Python on the node did not report the check results.")
    facts: dict[str, Any] = json.loads(found[1])
    return facts


def _rows(facts: Mapping[str, Any], python: str, modules: Sequence[str], programs: Sequence[str]) -> list[Check]:
    node = str(facts.get("host", ""))
    there = facts.get("modules") or {}
    versions = facts.get("packages") or {}
    rows = [_python(node, facts.get("python") or {}, python)]
    for name in modules:
        if there.get(name):
            rows.append(_version(node, name, str(versions.get(name, "")), python))
        else:
            level: CheckLevel = "warning" if name == READS_DATA else "error"
            rows.append(
                Check(
                    node,
                    name,
                    level,
                    f"{name} is not installed for {python}",
                    f"Install it on the nodes: {python} -m pip install {name}",
                    code="slurm-package-missing",
                )
            )
    found = facts.get("programs") or {}
    rows += [
        Check(node, name, "ok", str(found[name]))
        if found.get(name)
        else Check(
            node,
            name,
            "error",
            f"{name} was not found next to {python} or on the PATH of the node",
            "Install it, or load its module with the option setup.",
            code="slurm-program-missing",
        )
        for name in programs
    ]
    return rows


def _python(node: str, found: Mapping[str, Any], python: str) -> Check:
    import platform

    there, here = str(found.get("version", "")), platform.python_version()
    if there.split(".")[:2] != here.split(".")[:2]:
        return Check(
            node,
            "Python",
            "warning",
            f"Python {there}, but {here} on this machine; captured functions may not load",
            f"Set the option python to a Python {'.'.join(here.split('.')[:2])} on the nodes.",
            code="slurm-python",
        )
    return Check(node, "Python", "ok", f"{there}, {python}")


def _version(node: str, name: str, there: str, python: str) -> Check:
    here = installed_version(name)
    if there and here and there != here:
        return Check(
            node,
            name,
            "warning",
            f"{name} {there}, but {here} on this machine",
            f"Install the same version: {python} -m pip install {name}=={here}",
            code="slurm-package-version",
        )
    return Check(node, name, "ok", there or "installed")
