"""The settings of a cluster on Azure Machine Learning: which workspace and compute, and what a job's image is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from distdl_jupyter.core.errors import InvalidSpec

#: The word for an image that Azure ML builds from this package's own Dockerfile (Open MPI, PyTorch, Horovod).
GENERATED = "generated"
_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
#: learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
_GROUP = re.compile(r"[-\w._()]{0,89}[-\w_()]")
_WORKSPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{1,32}")
_COMPUTE = re.compile(r"[A-Za-z][A-Za-z0-9-]{1,23}")
_EXPERIMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")
_MEMORY = re.compile(r"[1-9]\d*[bkmg]")
#: What Azure ML calls its tiers on serverless compute: Spot nodes are cheaper and can be taken away.
TIERS = ("", "Spot", "Basic", "Standard", "Premium")


@dataclass(frozen=True, slots=True)
class AzureMLOptions:
    """What every job on this cluster asks Azure ML for."""

    subscription_id: str = field(
        default="", metadata={"help": "the subscription ID (default: set with %dist_config azure)", "first": True}
    )
    resource_group: str = field(default="", metadata={"help": "the workspace's resource group", "first": True})
    workspace: str = field(default="", metadata={"help": "the workspace", "first": True})
    compute: str = field(
        default="", metadata={"help": "the compute cluster (default: serverless nodes of size vm_size)", "first": True}
    )
    vm_size: str = field(
        default="", metadata={"help": "VM size of the nodes, which determines their GPUs; required without compute"}
    )
    environment: str = field(
        default=GENERATED,
        metadata={
            "help": "the job's image: generated (Open MPI, PyTorch and Horovod, built by Azure ML), name:version "
            "of the workspace, azureml://registries/..., or an image such as myregistry.azurecr.io/train:1"
        },
    )
    shm_size: str = field(default="8g", metadata={"help": "shared memory of the container on each node, such as 8g"})
    job_tier: str = field(
        default="",
        metadata={
            "help": "tier of serverless nodes; Spot is cheaper, but Azure can preempt the nodes",
            "choices": TIERS,
        },
    )
    experiment: str = field(default="distdl", metadata={"help": "the experiment under which Azure ML lists jobs"})
    python: str = field(default="python", metadata={"help": "the Python that runs ranks in the image"})

    def __post_init__(self) -> None:
        self._check("subscription_id", _ID, "an ID such as 01234567-89ab-cdef-0123-456789abcdef")
        self._check("resource_group", _GROUP, "the name of a resource group")
        self._check("workspace", _WORKSPACE, "the name of a workspace: 2 to 33 letters, digits, - and _")
        self._check("compute", _COMPUTE, "the name of a compute cluster: 2 to 24 letters, digits and -")
        self._check("experiment", _EXPERIMENT, "a name of letters, digits, - and _")
        self._check("shm_size", _MEMORY, "a size such as 8g or 512m")

    def _check(self, name: str, pattern: re.Pattern[str], takes: str) -> None:
        value = getattr(self, name)
        if value and not (isinstance(value, str) and pattern.fullmatch(value)):
            raise InvalidSpec(f"{name} is {value!r}, but must be {takes}.", code="azureml-option-invalid", field=name)

    @property
    def missing(self) -> str:
        """The name of the first option that a job needs and that is not set, "" when all are."""
        for name in ("resource_group", "workspace"):
            if not getattr(self, name):
                return name
        return "" if self.compute or self.vm_size else "compute"
