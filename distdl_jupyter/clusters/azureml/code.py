"""What of a job travels to Azure ML as its code: payload, plan, this package, and the few lines that unpack it.

Only what was captured travels, nothing else of the user's folder. Secret values are in none of these files, and no
variable of the job stands in Azure's own record of it.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters import environment, identity, package
from distdl_jupyter.core.errors import LaunchFailed
from distdl_jupyter.node.ports import HIGH, LOW

if TYPE_CHECKING:
    from distdl_jupyter.clusters.base import Context
    from distdl_jupyter.core.plan import Placement, Plan
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder

#: Stands in the payload for the folder in which a node has the code; the node puts its own in.
HERE = "@job@"
_LATE = re.compile(r"@(address|network|interface|port-\d+)@")
#: What runs first on a node, with the image's Python alone.
_LAUNCH = '''"""Unpack the job's package and become one of its ranks."""
import os, pathlib, shutil, sys, zipfile

if sys.version_info < (3, 11):
    sys.exit("The image has Python %d.%d, but ranks need 3.11 or later: set the cluster's option environment or python."
             % sys.version_info[:2])
here = pathlib.Path.cwd()
library = here / "lib"
if not library.exists():
    own = here / (".lib-%s-%d" % (os.uname().nodename, os.getpid()))
    with zipfile.ZipFile(here / "package.zip") as archive:
        archive.extractall(own)
    try:
        own.rename(library)
    except OSError:  # another rank of this node was quicker
        shutil.rmtree(own, ignore_errors=True)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(library), os.environ.get("PYTHONPATH"))))
os.execv(sys.executable, [sys.executable, "-P", "-m", "distdl_jupyter.clusters.azureml.node.rank", *sys.argv[1:]])
'''


def write(spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> Path:
    """Write the folder that is uploaded and return it. Raises LaunchFailed."""
    folder = context.folder
    target = folder.path / "azureml" / "code"
    try:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True, mode=0o700)
        (target / "package.zip").write_bytes(package.built().content)
        (target / "launch.py").write_text(_LAUNCH, encoding="utf-8")
        (target / "plan.json").write_text(json.dumps(plan_data(spec, placement, plan, context)), encoding="utf-8")
        _payload(folder, target)
    except OSError as error:
        raise LaunchFailed(
            f"Cannot collect the job's files in {target}: {error.strerror}.",
            code="azureml-files-not-gathered",
            hint="Free disk space, or check the permissions of that folder.",
        ) from error
    return target


def size(target: Path) -> int:
    """Return the bytes that are uploaded."""
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def remove(folder: JobFolder) -> None:
    """Take the folder away again."""
    shutil.rmtree(folder.path / "azureml", ignore_errors=True)


def _payload(folder: JobFolder, target: Path) -> None:
    payload = json.loads((folder.path / "payload.json").read_text(encoding="utf-8"))
    if payload.get("script"):
        script = Path(payload["script"])
        (target / "script").mkdir()
        shutil.copy2(script, target / "script" / script.name)
        payload["script"] = f"{HERE}/script/{script.name}"
    payload["working_directory"] = f"{HERE}/work"
    (target / "payload.json").write_text(json.dumps(payload), encoding="utf-8")
    if folder.payload.exists():
        shutil.copy2(folder.payload, target / folder.payload.name)
    if folder.code.is_dir():
        shutil.copytree(folder.code, target / folder.code.name)


def plan_data(spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> dict[str, Any]:
    """Return what a process on a node must know, as plain data."""
    hidden = (*spec.secret_variables, "DISTDL_JOB_DIR")
    own = {name: value for name, value in context.own.items() if name not in hidden}
    environments = [{**plan.environments[place.rank], **_identity(placement, place.rank)} for place in placement.ranks]
    if plan.distribution == "ray":
        environments = [_without_late(environment) for environment in environments]
    services = [{"name": one.name, "arguments": list(one.arguments), "ready": one.ready} for one in plan.services]
    return {
        "job": spec.id,
        "ranks": spec.process_count,
        "distribution": plan.distribution,
        "per_node": spec.process_count_per_node,
        "grace": spec.stop_grace_seconds,
        "ports": len(placement.ports),
        # Where Azure ML names no port, rank 0 is looked for at this one.
        "port": LOW + zlib.crc32(spec.id.encode()) % (HIGH - LOW),
        "meets": bool(services or _LATE.search(json.dumps(environments))),
        "common": {**environment.for_ranks(context.inherited), **own},
        "environments": environments,
        "services": services,
        "data": {source.name: source.variable for source in spec.data},
    }


def _without_late(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what does not say where ranks meet: Azure ML makes the Ray cluster itself, and tells nobody its ports."""
    return {name: value for name, value in environment.items() if not _LATE.search(value)}


def _identity(placement: Placement, rank: int) -> dict[str, str]:
    """Return who the rank is, without the host: Azure ML chooses it later."""
    found = identity.variables(placement, placement.ranks[rank])
    return {name: value for name, value in found.items() if name != "DISTDL_HOST"}
