"""A job for Azure ML: options, command, distribution, image, data, and uploaded code.

Azure ML starts the ranks, and uses its own ``mpirun`` for Horovod. Only captured code is uploaded, not the user's other
files. Uploaded files contain no secret values, and Azure's record of the job contains no variables.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import shutil
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from distdl_jupyter.azure import settings
from distdl_jupyter.clusters import environment as variables
from distdl_jupyter.clusters import package
from distdl_jupyter.clusters.azureml.bootstrap import FOLDER_PLACEHOLDER
from distdl_jupyter.clusters.azureml.client import API_ENVIRONMENT, Workspace
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core.errors import AzureRefused, InvalidSpec, LaunchFailed
from distdl_jupyter.core.packages import FIELDS, declares_packages, is_lock_file
from distdl_jupyter.core.plan import Distribution, Placement, Plan, option
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder

#: The option value for the image that Azure ML builds from this package's Dockerfile (Open MPI, PyTorch, Horovod).
GENERATED_IMAGE = "generated"
#: The name of the generated image in the workspace; its version is the digest of the Dockerfile.
IMAGE_NAME = "distdl-horovod-pytorch"
#: Placeholder in a placement for addresses, interfaces and ports that Azure sets in environment variables.
SET_BY_AZURE = "@azure@"
#: Seconds by which Azure ML's time limit exceeds the job's, so that it only ends jobs without a supervisor.
_LIMIT_MARGIN_SECONDS = 1800
#: Our mode of a data source -> Azure ML's mode of an input.
_DATA_MODES = {"download": "download", "mount": "ro_mount"}


@dataclass(frozen=True, slots=True)
class AzureMLOptions:
    """The options of every job on this cluster."""

    subscription_id: str = option("", "the subscription ID (default: set with %dist_config azure)", first=True)
    resource_group: str = option("", "the workspace's resource group", first=True)
    workspace: str = option("", "the workspace", first=True)
    compute: str = option("", "the compute cluster (default: serverless nodes of size vm_size)", first=True)
    vm_size: str = option("", "VM size of the nodes, which determines their GPUs; required without compute")
    environment: str = option(
        GENERATED_IMAGE,
        "the job's image: generated (Open MPI, PyTorch and Horovod, built by Azure ML), name:version "
        "of the workspace, azureml://registries/..., or an image such as myregistry.azurecr.io/train:1",
    )
    shm_size: str = option("8g", "shared memory of the container on each node, such as 8g")
    job_tier: str = option(
        "",
        "tier of serverless nodes; Spot is cheaper, but Azure can preempt the nodes",
        choices=("", "Spot", "Basic", "Standard", "Premium"),
    )
    experiment: str = option("distdl", "the experiment under which Azure ML lists jobs")
    python: str = option("python", "the Python that runs ranks in the image")

    def __post_init__(self) -> None:
        if self.shm_size and not re.fullmatch(r"[1-9]\d*[bkmg]", self.shm_size):
            message = f"shm_size is {self.shm_size!r}, but must be a size such as 8g or 512m."
            raise InvalidSpec(message, code="azureml-option-invalid", field="shm_size")

    @property
    def missing_option(self) -> str:
        """The name of the first required option that is not set, or "" if all are set."""
        for name in ("resource_group", "workspace"):
            if not getattr(self, name):
                return name
        return "" if self.compute or self.vm_size else "compute"


def build_run_name(job_id: str) -> str:
    """Return the name of the job in the workspace, which is derived from the job ID."""
    return f"distdl-{job_id}"


def check_spec(spec: JobSpec) -> None:
    """Raise InvalidSpec for a job that Azure ML does not support."""
    if spec.distributed_backend == "ray":
        message = "Jobs with Ray are not supported on Azure ML."
        hint = "Use a cluster of type ray, ssh or slurm, or another backend."
        raise InvalidSpec(message, code="azureml-backend", field="distributed_backend", hint=hint)
    if spec.distributed_backend == "tensorflow" and spec.process_count_per_node > 1:
        message = "TensorFlow runs one process per node on Azure ML."
        hint = "Set process_count_per_node to 1."
        raise InvalidSpec(message, code="azureml-one-process-per-node", field="process_count_per_node", hint=hint)
    if spec.secret_variables:
        message = (
            f"{spec.secret_variables[0]} looks like a secret, but everyone in the workspace can read the variables "
            "and code of Azure ML jobs."
        )
        hint = "Store the secret in a Key Vault, and let ranks read it with the managed identity of the compute target."
        raise InvalidSpec(message, code="azureml-secret-variable", field="environment_variables", hint=hint)
    for source in spec.data:
        if source.scheme != "blob":
            message = f"Azure ML nodes cannot access {source.address}."
            hint = "Upload the data to Azure Blob storage, and use blob://account/container/prefix."
            raise InvalidSpec(message, code="azureml-data-not-blob", field="data", hint=hint)
        if source.shard:
            message = "?shard is not supported on Azure ML, which copies all files to every node."
            hint = "Remove ?shard, and select the files by rank in your code."
            raise InvalidSpec(message, code="azureml-data-shard", field="data", hint=hint)
    image = spec.cluster_options.get("environment", "")
    package_option = next((name for name in FIELDS if getattr(spec, name)), "")
    if package_option == "requirements" and declares_packages(spec.source.code):
        package_option = ""  # the image may also contain packages that a script declares
    if package_option and image not in ("", GENERATED_IMAGE):
        message = f"Packages cannot be added to the existing image {image}."
        hint = "Install the packages in that image, or remove the option 'environment'."
        raise InvalidSpec(message, code="azureml-image-packages", field=package_option, hint=hint)


def build_command(spec: JobSpec, options: AzureMLOptions, code: Path, image: Any, distribution: Distribution) -> Any:
    """Return the job for azure-ai-ml."""
    from azure.ai import ml

    arguments = [shlex.quote(options.python), "launch.py"]
    inputs = {}
    for source in spec.data:
        arguments.append(f"{source.name}=${{{{inputs.{source.name}}}}}")
        prefix = f"{source.prefix.strip('/')}/" if source.prefix.strip("/") else ""
        path = f"{settings.read().endpoints.blob.format(account=source.account)}/{source.container}/{prefix}"
        inputs[source.name] = ml.Input(type="uri_folder", path=path, mode=_DATA_MODES[source.mode])
    launcher: Any
    if distribution == "tensorflow":
        launcher = ml.TensorFlowDistribution(parameter_server_count=0, worker_count=spec.node_count)
    else:
        distribution_class = ml.MpiDistribution if distribution == "mpi" else ml.PyTorchDistribution
        launcher = distribution_class(process_count_per_instance=spec.process_count_per_node)
    job = ml.command(
        name=build_run_name(spec.id),
        display_name=spec.name,
        experiment_name=options.experiment,
        description="Submitted by distdl_jupyter.",
        tags={"distdl_job": spec.id},
        code=str(code),
        command=" ".join(arguments),
        environment=image,
        inputs=inputs,
        compute=options.compute or None,
        instance_count=spec.node_count,
        instance_type=None if options.compute else options.vm_size,
        distribution=launcher,
        shm_size=options.shm_size or None,
    )
    if spec.max_run_duration_seconds is not None:
        job.set_limits(timeout=math.ceil(spec.max_run_duration_seconds) + _LIMIT_MARGIN_SECONDS)
    if options.job_tier and not options.compute:
        job.set_queue_settings(job_tier=options.job_tier)
    return job


def write_code(spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> Path:
    """Write the folder to upload and return it. Raises LaunchFailed."""
    folder = context.folder
    target = folder.path / "azureml" / "code"
    try:
        remove_code(folder)
        target.mkdir(parents=True, mode=0o700)
        (target / "package.zip").write_bytes(package.build_package().content)
        (target / "launch.py").write_bytes((resources.files(__package__) / "bootstrap.py").read_bytes())
        (target / "plan.json").write_text(json.dumps(_make_plan(spec, placement, plan, context)), encoding="utf-8")
        payload = json.loads((folder.path / "payload.json").read_text(encoding="utf-8"))
        if payload.get("script"):
            script = Path(payload["script"])
            (target / "script").mkdir()
            shutil.copy2(script, target / "script" / script.name)
            payload["script"] = f"{FOLDER_PLACEHOLDER}/script/{script.name}"
        payload["working_directory"] = f"{FOLDER_PLACEHOLDER}/work"
        (target / "payload.json").write_text(json.dumps(payload), encoding="utf-8")
        if folder.payload.exists():
            shutil.copy2(folder.payload, target / folder.payload.name)
        if folder.code.is_dir():
            shutil.copytree(folder.code, target / folder.code.name)
    except OSError as error:
        message = f"Cannot write the job's files to {target}: {error.strerror}."
        hint = "Free disk space, or check the permissions of that folder."
        raise LaunchFailed(message, code="azureml-files-not-gathered", hint=hint) from error
    return target


def remove_code(folder: JobFolder) -> None:
    """Remove the local folder that ``write_code`` wrote."""
    shutil.rmtree(folder.path / "azureml", ignore_errors=True)


def _make_plan(spec: JobSpec, placement: Placement, plan: Plan, context: Context) -> dict[str, Any]:
    """Return the data that every process reads on its node; Azure sets the rendezvous variables there."""
    excluded = (*spec.secret_variables, "DISTDL_JOB_DIR")
    job_variables = {name: value for name, value in context.variables.items() if name not in excluded}
    # Azure's mpirun coordinates the ranks, so Horovod's Gloo controller is not used.
    mpi_variables = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"} if plan.distribution == "mpi" else {}
    environments = []
    for slot in placement.ranks:
        environment = {name: value for name, value in plan.environments[slot.rank].items() if SET_BY_AZURE not in value}
        environments.append(environment | mpi_variables | variables.build_rank_variables(placement, slot))
    return {
        "ranks": spec.process_count,
        "per_node": spec.process_count_per_node,
        "common": {**variables.select_for_remote_ranks(context.inherited), **job_variables},
        "environments": environments,
        "data": {source.name: source.variable for source in spec.data},
    }


def build_environment(options: AzureMLOptions, workspace: Workspace, spec: JobSpec, folder: Path) -> Any:
    """Return the job's image for azure-ai-ml. A generated image is built if the workspace does not have it yet.

    ``folder`` is for the build files, which list the requested packages.
    """
    from azure.ai.ml.entities import BuildContext, Environment

    name = options.environment or GENERATED_IMAGE
    if name != GENERATED_IMAGE:
        return Environment(image=name) if "/" in name and not name.startswith("azureml:") else name
    files: dict[str, str] = {}
    dockerfile = (resources.files(__package__) / "image" / "Dockerfile").read_text(encoding="utf-8")
    if spec.conda_packages:
        files["conda.txt"] = "\n".join(spec.conda_packages) + "\n"
        dockerfile += "COPY conda.txt /tmp/\nRUN conda install --yes --file /tmp/conda.txt\n"
    if spec.pip_packages:
        files["packages.txt"] = "\n".join(spec.pip_packages) + "\n"
    if spec.requirements:
        files["pylock.toml" if is_lock_file(spec.requirements) else "requirements.txt"] = spec.requirements
    for file in sorted(files.keys() - {"conda.txt"}):
        dockerfile += f"COPY {file} /tmp/\nRUN pip install --no-cache-dir -r /tmp/{file}\n"
    version = hashlib.sha256(json.dumps([dockerfile, files]).encode()).hexdigest()[:12]
    try:
        workspace.get(f"/environments/{IMAGE_NAME}/versions/{version}", API_ENVIRONMENT)
    except AzureRefused as error:
        if error.status != 404:
            raise
    else:
        return f"{IMAGE_NAME}:{version}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for file, content in {"Dockerfile": dockerfile, **files}.items():
        (folder / file).write_text(content, encoding="utf-8")
    return Environment(
        name=IMAGE_NAME,
        version=version,
        build=BuildContext(path=str(folder), dockerfile_path="Dockerfile"),
        description="Open MPI, PyTorch and Horovod, by distdl_jupyter.",
    )
