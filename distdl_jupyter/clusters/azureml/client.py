"""Client of an Azure ML workspace, and the jobs that it submits: command, distribution, image, data, uploaded code.

azure-ai-ml submits jobs; it takes about two seconds to import, so it is imported only for that or to manage compute
clusters. It can only read the log of the first process, and downloads the whole file each time, so ``azure.rest`` is
used for the details, the logs and the cancellation of a run. Paths and API versions are those of azure-ai-ml 1.35.2.

Azure ML starts the ranks, and uses its own ``mpirun`` for Horovod. Only captured code is uploaded, not the user's other
files. Uploaded files contain no secret values, and Azure's record of the job contains no variables.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import threading
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from distdl_jupyter.azure import identity, settings
from distdl_jupyter.azure.rest import RestClient
from distdl_jupyter.clusters import environment as variables
from distdl_jupyter.clusters.azureml.bootstrap import FOLDER_PLACEHOLDER
from distdl_jupyter.clusters.base import Context
from distdl_jupyter.core.data import PACKAGE_OPTIONS, SCRIPT_METADATA, is_lock_file
from distdl_jupyter.core.errors import AzureRefused, ClusterRefused, DistDLError, InvalidSpec, LaunchFailed
from distdl_jupyter.core.plan import Distribution, Placement, Plan, option
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.worker.secret_patterns import mask

#: API versions of the resource manager, by type of resource.
API_WORKSPACE = API_DATASTORE = "2024-10-01-preview"
API_ENVIRONMENT, API_WORKSPACES = "2023-04-01-preview", "2024-10-01"
API_JOB, API_CANCEL = "2024-01-01-preview", "2023-04-01-preview"
#: The states of a job that has ended.
ENDED_STATES = frozenset({"Completed", "Failed", "Canceled"})
#: Held while the environment of this process is changed.
_environment_lock = threading.Lock()
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


class Workspace:
    """One workspace, accessed as the signed-in user."""

    def __init__(self, subscription_id: str, resource_group: str, workspace: str) -> None:
        self.names = {"subscription_id": subscription_id, "resource_group": resource_group, "workspace": workspace}
        subscription, group, name = (quote(text, safe="") for text in self.names.values())
        #: The path of the workspace in the resource manager.
        self.path = f"/subscriptions/{subscription}/resourceGroups/{group}"
        self.path += f"/providers/Microsoft.MachineLearningServices/workspaces/{name}"
        self._clients: dict[str, RestClient] = {}

    @classmethod
    def from_options(cls, options: Any) -> Workspace:
        """Return the workspace of a cluster. Raises InvalidSpec if an option is missing."""
        return cls(*(require(options, name) for name in ("subscription_id", "resource_group", "workspace")))

    @functools.cached_property
    def _manager(self) -> RestClient:
        """The client of the resource manager. Raises NotSignedIn."""
        return identity.create_client()

    @functools.cached_property
    def _history(self) -> RestClient:
        """The client of the run history, whose address is in the workspace's discovery document."""
        discovery = str(self.get()["properties"]["discoveryUrl"])
        api = str(self.get_anonymous_client(discovery).get(discovery)["api"])
        cloud = settings.read().endpoints
        return RestClient(api, identity.get_credential(), cloud.get_scope(cloud.resource_manager))

    def get_anonymous_client(self, url: str) -> RestClient:
        """Return a client without credentials for the host of a signed URL, such as the URL of a log."""
        parts = urlsplit(url)
        host = f"{parts.scheme}://{parts.netloc}"
        if host not in self._clients:
            self._clients[host] = RestClient(host, None, retries=1)
        return self._clients[host]

    def get(self, path: str = "", api_version: str = API_WORKSPACE) -> dict[str, Any]:
        """Return the record of the workspace, or of something in it. Raises AzureRefused."""
        return dict(self._manager.get(self.path + path, api_version))

    def get_job(self, name: str) -> dict[str, Any]:
        """Return the properties of a job. Raises AzureRefused."""
        return dict(self.get(f"/jobs/{quote(name)}", API_JOB)["properties"])

    def get_details(self, name: str) -> dict[str, Any]:
        """Return the status, the error and the log files (``{name: signed URL}``) of a job."""
        path = f"{self._history.address}/history/v1.0{self.path}/runs/{quote(name)}/details"
        return dict(self._history.get(path, "v1.0"))

    def cancel(self, name: str) -> bool:
        """Cancel a job; return False if it has ended or does not exist. Raises DistDLError."""
        try:
            if self.get_job(name).get("status") in ENDED_STATES:
                return False
            self._manager.post(f"{self.path}/jobs/{quote(name)}/cancel", API_CANCEL)
        except AzureRefused as error:
            if error.status not in (400, 404, 409):
                raise
            return False
        return True

    def get_datastore(self, name: str) -> dict[str, Any]:
        """Return the properties of a datastore, with a short-lived SAS token as ``sasToken`` if one can be requested.

        An account key is never requested, because it grants full access. Raises AzureRefused.
        """
        path = f"/datastores/{quote(name)}"
        store = dict(self.get(path, API_DATASTORE)["properties"])
        if (store.get("credentials") or {}).get("credentialsType", "None") != "None":
            with contextlib.suppress(DistDLError):  # the user's account may have access
                store |= self._manager.post(f"{self.path}{path}/listSecrets", API_DATASTORE, {"expirableSecret": True})
        return store


def require(options: Any, name: str) -> str:
    """Return the value of a required option; the default of the subscription is in the settings. Raises InvalidSpec."""
    is_subscription = name == "subscription_id"
    if value := getattr(options, name) or (is_subscription and settings.read().subscription_id):
        return str(value)
    message = f"The Azure ML cluster has no {name}."
    hint = f"Set the cluster option {name}" + (", or run: %dist_config azure" if is_subscription else ".")
    raise InvalidSpec(message, code="azureml-option-missing", field=name, hint=hint)


@contextlib.contextmanager
def open_ml_client(workspace: Workspace, **variables: str) -> Iterator[Any]:
    """Yield azure-ai-ml's client for a workspace, without warnings and telemetry. Raises LaunchFailed, NotSignedIn.

    ``variables`` are environment variables for the block; the variable that azure-ai-ml sets is restored too.
    """
    names = workspace.names.values()
    with _environment_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from azure.ai.ml import MLClient
        except ImportError as error:
            message, hint = "azure-ai-ml is not installed.", "Run: pip install 'distdl-jupyter[azure]'."
            raise LaunchFailed(message, code="azure-ai-ml-missing", hint=hint) from error
        previous = {name: os.environ.get(name) for name in (*variables, "AZUREML_CURRENT_CLOUD")}
        os.environ.update(variables)
        try:
            cloud = _get_cloud_options()
            yield MLClient(identity.get_credential(), *names, **cloud, enable_telemetry=False, show_progress=False)
        finally:
            for name, value in previous.items():
                os.environ.pop(name, None)
                os.environ.update({name: value} if value is not None else {})


@contextlib.contextmanager
def open_computes(options: Any) -> Iterator[Any]:
    """Yield azure-ai-ml's operations on the compute targets of a workspace, and translate Azure's errors."""
    with translate_azure_errors(options):
        with open_ml_client(Workspace.from_options(options)) as client:
            operations = client.compute
        yield operations


def _get_cloud_options() -> dict[str, Any]:
    """Return azure-ai-ml's arguments for the cloud: its name, and its addresses if azure-ai-ml does not know them."""
    cloud = settings.read().endpoints
    if settings.CLOUDS.get(cloud.name) == cloud:
        return {"cloud": cloud.name}
    metadata = {
        "azure_portal": cloud.portal,
        "resource_manager": cloud.resource_manager,
        "active_directory": cloud.authority,
        "aml_resource_id": cloud.ml_audience,
        "storage_endpoint": urlsplit(cloud.blob.format(account="x")).netloc.removeprefix("x.blob."),
        "registry_discovery_endpoint": f"{cloud.ml_audience}/",
    }
    # The name depends on the addresses, because azure-ai-ml caches the addresses of a name while the process runs.
    return {"cloud": f"{cloud.name}-{zlib.crc32(json.dumps(metadata).encode()):x}", "cloud_metadata": metadata}


# Error codes differ between services, so error texts are matched too. The texts come from public issues and from the
# pages on quotas (learn.microsoft.com, how-to-manage-quotas) and roles (how-to-assign-roles).
CHECK_HINT = "Check the options 'subscription_id', 'resource_group' and 'workspace'."
#: Pattern of an error text: remedy. The first match is used.
_REMEDIES = {
    r"preempt|evict|low.?priority": "Submit the job again from a checkpoint, or use dedicated nodes.",
    r"image build|build.*image|docker": "Check the build log above and the option 'environment'.",
    r"quota|cores? limit": "Use fewer nodes or another size, or request more quota for this VM family: Azure Machine "
    "Learning has its own quota (ml.azure.com, Quota).",
    r"AllocationFailed|capacity|SkuNotAvailable": "Azure has no capacity for this size in the region now. Try again "
    "later, or use another size or region.",
    r"(vm ?size|sku)\b.*(not (supported|available|valid|found)|invalid)": "Choose a size that the region offers: "
    "az ml compute list-sizes",
    r"ScopeLocked": "Ask for the lock on the resource group to be removed, because it prevents changes.",
    r"compute target|compute .*not found": "Set the option 'compute' to a compute target of the workspace.",
    r"out of memory|oom|exit(ed)? .*137": "Use a VM size with more memory, or smaller batches.",
    r"environment": "Set the option 'environment' to an image, or to an environment of the workspace.",
}
#: Azure's error code for an unknown name -> the option with the name.
_NOT_FOUND_FIELDS = {
    "SubscriptionNotFound": "subscription_id",
    "InvalidSubscriptionId": "subscription_id",
    "ResourceGroupNotFound": "resource_group",
}


def find_remedy(text: str, role: str = "AzureML Data Scientist in the workspace") -> str:
    """Return the remedy for an Azure error, or "" if it is unknown; ``role`` is the role that the request needs."""
    for pattern, hint in _REMEDIES.items():
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return hint
    if re.search(r"authoriz|permission|\b403\b", text, re.IGNORECASE):
        return f"Ask for the role {role}."
    return CHECK_HINT if re.search(r"workspaces/|resource group|subscription", text, re.IGNORECASE) else ""


@contextlib.contextmanager
def translate_azure_errors(options: Any) -> Iterator[None]:
    """Translate Azure errors in the block into errors with a remedy."""
    from azure.core.exceptions import AzureError, HttpResponseError

    try:
        yield
    except AzureRefused as error:
        raise _translate(error, options) from None
    except HttpResponseError as error:
        message, azure_code = (getattr(error.error, name, None) or "" for name in ("message", "code"))
        code, status = "azure-request-refused", error.status_code or 0
        refusal = AzureRefused(message or error.message, code=code, status=status, azure_code=azure_code)
        raise _translate(refusal, options) from None
    except AzureError as error:
        message = f"Azure cannot be reached: {mask(str(error))[:300]}"
        hint = "Check the network connection of this machine. Behind a proxy, set HTTPS_PROXY."
        raise AzureRefused(message, code="azure-unreachable", hint=hint) from None


def _translate(error: AzureRefused, options: Any) -> DistDLError:
    """Return the error with its remedy, or the same error if no remedy is known."""
    field = _NOT_FOUND_FIELDS.get(error.azure_code, "")
    if error.status == 404 and not field:
        if "workspaces/" not in error.message or "/computes" in error.message:
            return error  # a compute target that does not exist
        field = "workspace"
    if field:
        subject = f"{field.removesuffix('_id').replace('_', ' ')} {getattr(options, field)}"
        message = f"The {subject} does not exist, or this account cannot access it."
        return InvalidSpec(message, code=f"azureml-{field.replace('_', '-')}-not-found", field=field, hint=CHECK_HINT)
    text = re.sub(r"^\S+ responded with \d+(?: \w+)?: ", "", error.message).strip().split("\n", 1)[0]
    role = "AzureML Compute Operator in the workspace"
    hint = find_remedy(f"{error.status} {error.azure_code} {error.message}", role)
    return ClusterRefused(f"{text.rstrip('.')}.", code="azureml-compute-refused", hint=hint) if hint else error


def make_rejection(error: Exception) -> LaunchFailed:
    """Return the error for a rejected job: one sentence without signatures of URLs, and a remedy."""
    message = getattr(getattr(error, "error", None), "message", None) or getattr(error, "message", None) or str(error)
    text = mask(" ".join(str(message).split("\n", 1)[0].split()))[:400].rstrip(".") or type(error).__name__
    hint = getattr(error, "hint", "") or find_remedy(f"{getattr(error, 'status_code', '')} {text}")
    return LaunchFailed(f"Azure ML rejected the job: {text}.", code="azureml-job-rejected", hint=hint)


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
        name = spec.secret_variables[0]
        message = f"{name} looks like a secret, but all users of the workspace can read the variables of its jobs."
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
    package_option = next((name for name in PACKAGE_OPTIONS if getattr(spec, name)), "")
    if package_option == "requirements" and SCRIPT_METADATA.search(spec.source.code):
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
    excluded = (*spec.secret_variables, "DISTDL_JOB_DIR")
    job_variables = {name: value for name, value in context.variables.items() if name not in excluded}
    # Azure's mpirun coordinates the ranks, so Horovod's Gloo controller is not used.
    mpi_variables = {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"} if plan.distribution == "mpi" else {}
    environments = []
    for slot in placement.ranks:  # Azure sets the rendezvous variables
        environment = {name: value for name, value in plan.environments[slot.rank].items() if SET_BY_AZURE not in value}
        environments.append(environment | mpi_variables | variables.build_rank_variables(placement, slot))
    node_plan = {
        "ranks": spec.process_count,
        "per_node": spec.process_count_per_node,
        "common": {**variables.select_for_remote_ranks(context.inherited), **job_variables},
        "environments": environments,
        "data": {source.name: source.variable for source in spec.data},
    }
    try:
        remove_code(folder)
        target.mkdir(parents=True, mode=0o700)
        (target / "package.zip").write_bytes(variables.build_package().content)
        (target / "launch.py").write_bytes((resources.files(__package__) / "bootstrap.py").read_bytes())
        (target / "plan.json").write_text(json.dumps(node_plan), encoding="utf-8")
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
    build = BuildContext(path=str(folder), dockerfile_path="Dockerfile")
    return Environment(name=IMAGE_NAME, version=version, build=build, description="Made by distdl_jupyter.")
