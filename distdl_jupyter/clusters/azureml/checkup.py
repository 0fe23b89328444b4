"""Whether a workspace of Azure ML can run jobs: sign-in, workspace, compute, size, image.

A node is not looked at: none may be up, and bringing one up costs money and minutes. So what an image holds is known
only for the one that this package generates.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distdl_jupyter.azure import identity
from distdl_jupyter.clusters.azureml import compute as computes
from distdl_jupyter.clusters.azureml.client import Address, Workspace
from distdl_jupyter.clusters.azureml.options import GENERATED
from distdl_jupyter.clusters.base import Check
from distdl_jupyter.core.errors import DistDLError

if TYPE_CHECKING:
    from distdl_jupyter.clusters.azureml.options import AzureMLOptions

#: What the generated image holds beside Python's own modules, and programs that it brings.
_MODULES = frozenset({"torch", "horovod", "numpy", "pandas", "sklearn", "cloudpickle", "psutil", "torchvision"})
_PROGRAMS = frozenset({"mpirun", "sh", "bash", "git", "g++"})
_NAMES = "Check the options subscription_id, resource_group and workspace."


def checked(options: AzureMLOptions, modules: Sequence[str], programs: Sequence[str]) -> list[Check]:
    """Return what was looked at, in the order in which it matters."""
    account = identity.account()
    if account is None:
        return [Check("", "Azure", "error", "not signed in", identity.HOW, code="azureml-signed-out")]
    found = [Check("", "Azure", "ok", f"signed in as {account.name}")]
    try:
        Workspace(Address.of(options)).info()
    except DistDLError as error:
        return [*found, Check("", "Workspace", "error", error.message, error.hint or _NAMES, code=error.code)]
    found.append(Check("", "Workspace", "ok", options.workspace))
    return [*found, *_compute(options), *_image(options, modules, programs)]


def _compute(options: AzureMLOptions) -> list[Check]:
    if not options.compute:
        return [Check("", "Compute", "ok", f"serverless, {options.vm_size}")]
    try:
        compute = computes.get(options)
    except DistDLError as error:
        return [Check("", "Compute", "error", error.message, error.hint or "Try again in a minute.", code=error.code)]
    if compute is None:
        return [
            Check(
                "",
                "Compute",
                "error",
                f"the workspace has no compute target named {options.compute}",
                "Set compute to an existing compute target, or create it: distdl clusters compute create",
                code="azureml-compute",
            )
        ]
    says = f"{compute.name}, {compute.size}, at most {compute.max_instances} nodes"
    rows = [Check("", "Compute", "ok", says)]
    if computes.is_low_priority(compute):
        rows.append(
            Check(
                "",
                "Priority",
                "warning",
                "low: Azure may preempt nodes at any time",
                "Save checkpoints, and load the latest one at the start of the code.",
                code="azureml-priority",
            )
        )
    return rows


def lacking(options: AzureMLOptions, modules: Sequence[str]) -> list[str]:
    """Return the modules that the job's image is known not to have; what another image than ours holds is not known."""
    if options.environment not in ("", GENERATED):
        return []
    own = _MODULES | sys.stdlib_module_names
    return [name for name in modules if name.partition(".")[0] not in own]


def _image(options: AzureMLOptions, modules: Sequence[str], programs: Sequence[str]) -> list[Check]:
    if options.environment not in ("", GENERATED):
        return [Check("", "Image", "info", f"{options.environment}, whose packages are checked when a job runs")]
    rows = [Check("", "Image", "ok", "generated: Open MPI, PyTorch, Horovod; the first build takes a few minutes")]
    missing = [*lacking(options, modules), *(name for name in programs if name not in _PROGRAMS)]
    rows += [
        Check(
            "",
            name,
            "error",
            f"the generated image does not contain {name}",
            "Set the option environment to an image that contains {name}.",
            code="azureml-package",
        )
        for name in missing
    ]
    return rows
