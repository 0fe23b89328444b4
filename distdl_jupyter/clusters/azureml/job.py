"""A job as Azure ML is asked for it: command, distribution, image, data. Everything here uses azure-ai-ml's entities.

Azure ML starts the ranks itself, with a launcher of its own where they speak MPI: nobody brings one along.
"""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import identity
from distdl_jupyter.azure.rest import masked
from distdl_jupyter.clusters.azureml.options import GENERATED
from distdl_jupyter.core import data
from distdl_jupyter.core.errors import AzureRefused, InvalidSpec, LaunchFailed
from distdl_jupyter.core.packages import FIELDS, is_lock, states_packages

if TYPE_CHECKING:
    from distdl_jupyter.clusters.azureml.client import Workspace
    from distdl_jupyter.clusters.azureml.options import AzureMLOptions
    from distdl_jupyter.core.data import DataSource
    from distdl_jupyter.core.plan import Distribution
    from distdl_jupyter.core.spec import JobSpec

#: The name under which the generated image is kept in the workspace; its version is the Dockerfile's digest.
IMAGE = "distdl-horovod-pytorch"
#: Seconds beyond the job's own limit after which Azure ML ends it where no supervisor does.
_SPARE = 1800
_OUTPUTS = "outputs"


def run_name(job_id: str) -> str:
    """Return the name of the job in the workspace; it follows from the job's id alone."""
    return f"distdl-{job_id}"


def check(spec: JobSpec) -> None:
    """Raise InvalidSpec for what Azure ML cannot carry."""
    if spec.secret_variables:
        raise InvalidSpec(
            f"{spec.secret_variables[0]} looks like a secret, but everybody in the workspace can read the variables "
            "and code "
            "of Azure ML jobs.",
            code="azureml-secret-variable",
            field="environment_variables",
            hint="Store the secret in a Key Vault, and let ranks read it with the managed identity of the compute "
            "target.",
        )
    for source in spec.data:
        _check_source(source)
    image = spec.cluster_options.get("environment", "")
    field = next((name for name in FIELDS if getattr(spec, name)), "")
    if field == "requirements" and states_packages(spec.source.code):
        field = ""  # what a script states an image may have, too
    if field and image not in ("", GENERATED):
        raise InvalidSpec(
            f"Packages cannot be added to the existing image {image}.",
            code="azureml-image-packages",
            field=field,
            hint="Install the packages in that image, or remove the option environment.",
        )


def _check_source(source: DataSource) -> None:
    if source.scheme != "blob":
        raise InvalidSpec(
            f"Azure ML nodes cannot access {data.place(source)}.",
            code="azureml-data-not-blob",
            field="data",
            hint="Upload the data to Azure Blob storage, and use blob://account/container/prefix.",
        )
    if source.shard:
        raise InvalidSpec(
            "?shard is not supported on Azure ML, which copies all files to every node.",
            code="azureml-data-shard",
            field="data",
            hint="Remove ?shard, and choose the files by rank in the code.",
        )


def command(spec: JobSpec, options: AzureMLOptions, code: Path, environment: Any, distribution: Distribution) -> Any:
    """Return the job for ``MLClient.jobs``."""
    from azure.ai.ml import command as command_job

    job = command_job(
        name=run_name(spec.id),
        display_name=spec.name,
        experiment_name=options.experiment,
        description="Submitted by distdl_jupyter.",
        tags={"distdl_job": spec.id},
        code=str(code),
        command=_line(spec, options),
        environment=environment,
        inputs=_inputs(spec),
        outputs=_outputs(spec),
        compute=options.compute or None,
        instance_count=spec.node_count,
        instance_type=None if options.compute else options.vm_size,
        distribution=azure_distribution(spec, distribution),
        shm_size=options.shm_size or None,
    )
    if spec.max_run_duration_seconds is not None:
        job.set_limits(timeout=math.ceil(spec.max_run_duration_seconds) + _SPARE)
    if options.job_tier and not options.compute:
        job.set_queue_settings(job_tier=options.job_tier)
    return job


def _line(spec: JobSpec, options: AzureMLOptions) -> str:
    words = [shlex.quote(options.python), "launch.py"]
    for source in spec.data:
        words += ["--data", f"{source.name}=${{{{inputs.{source.name}}}}}"]
    if spec.outputs:
        words += ["--outputs", f"${{{{outputs.{_OUTPUTS}}}}}"]
    return " ".join(words)


def azure_distribution(spec: JobSpec, distribution: Distribution) -> Any:
    """Return how Azure ML starts the ranks. Raises InvalidSpec."""
    from azure.ai.ml import MpiDistribution, PyTorchDistribution, TensorFlowDistribution

    per_node = spec.process_count_per_node
    if distribution == "mpi":
        return MpiDistribution(process_count_per_instance=per_node)
    if distribution == "torch":
        return PyTorchDistribution(process_count_per_instance=per_node)
    if per_node > 1:
        raise InvalidSpec(
            f"{spec.distributed_backend} runs one process per node on Azure ML.",
            code="azureml-one-process-per-node",
            field="process_count_per_node",
            hint="Set process_count_per_node to 1.",
        )
    if distribution == "tensorflow":
        return TensorFlowDistribution(parameter_server_count=0, worker_count=spec.node_count)
    return _ray()


def _ray() -> Any:
    from azure.ai.ml import RayDistribution

    return RayDistribution(include_dashboard=False)


def _inputs(spec: JobSpec) -> dict[str, Any]:
    from azure.ai.ml import Input

    modes = {"download": "download", "mount": "ro_mount"}
    return {one.name: Input(type="uri_folder", path=_address(one.account, one.container, one.prefix),
                            mode=modes[one.mode]) for one in spec.data}  # fmt: skip


def _outputs(spec: JobSpec) -> dict[str, Any]:
    from azure.ai.ml import Output

    if not spec.outputs:
        return {}
    # Where the job's own delivery puts them too: what has arrived there from the nodes is not sent a second time.
    place = data.blob_place(spec.outputs, "outputs")
    where = _address(place.account, place.container, f"{place.prefix}/{spec.id}/outputs")
    return {_OUTPUTS: Output(type="uri_folder", path=where, mode="upload")}


def _address(account: str, container: str, prefix: str) -> str:
    base = f"{identity.endpoints().blob_endpoint(account)}/{container}/"
    return base + (f"{prefix.strip('/')}/" if prefix.strip("/") else "")


# the image ----------------------------------------------------------------------------------------


def environment(options: AzureMLOptions, workspace: Workspace, spec: JobSpec, folder: Path) -> Any:
    """Return the job's image as the SDK takes it; one that was generated before is named, not uploaded again.

    ``folder`` is where the image's own files may be laid, with the packages that the job asks for.
    """
    from azure.ai.ml.entities import Environment

    wanted = options.environment or GENERATED
    if wanted == GENERATED:
        return _generated(workspace, spec, folder)
    if "/" in wanted and not wanted.startswith("azureml:"):
        return Environment(image=wanted)
    return wanted


def _generated(workspace: Workspace, spec: JobSpec, folder: Path) -> Any:
    from azure.ai.ml.entities import BuildContext, Environment

    lines, files = _packages(spec)
    text = (resources.files(__package__) / "image" / "Dockerfile").read_text(encoding="utf-8") + lines
    version = hashlib.sha256(json.dumps([text, files]).encode()).hexdigest()[:12]
    if workspace.has_environment(IMAGE, version):
        return f"{IMAGE}:{version}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, content in {"Dockerfile": text, **files}.items():
        (folder / name).write_text(content, encoding="utf-8")
    return Environment(name=IMAGE, version=version, build=BuildContext(path=str(folder), dockerfile_path="Dockerfile"),
                       description="Open MPI, PyTorch and Horovod, by distdl_jupyter.")  # fmt: skip


def _packages(spec: JobSpec) -> tuple[str, dict[str, str]]:
    """Return the lines of a Dockerfile that install the job's packages, and the files that they read."""
    lines, files = "", {}
    if spec.conda_packages:
        files["conda.txt"] = "\n".join(spec.conda_packages) + "\n"
        lines += "COPY conda.txt /tmp/\nRUN conda install --yes --file /tmp/conda.txt\n"
    if spec.pip_packages:
        files["packages.txt"] = "\n".join(spec.pip_packages) + "\n"
    if spec.requirements:
        files["pylock.toml" if is_lock(spec.requirements) else "requirements.txt"] = spec.requirements
    for name in sorted(files.keys() - {"conda.txt"}):
        lines += f"COPY {name} /tmp/\nRUN pip install --no-cache-dir -r /tmp/{name}\n"
    return lines, files


# what is refused ----------------------------------------------------------------------------------

_REMEDIES = (
    ("unknown compute", "Set the option compute to a compute target of the workspace."),
    ("environment", "Set the option environment to an image, or to an environment of the workspace."),
    ("workspaces/", "Check the options subscription_id, resource_group and workspace."),
    ("resource group", "Check the options subscription_id, resource_group and workspace."),
    ("subscription", "Check the options subscription_id, resource_group and workspace."),
    ("authorizationfailed", "Ask for the role AzureML Data Scientist in the workspace."),
    ("does not have authorization", "Ask for the role AzureML Data Scientist in the workspace."),
    ("permission", "Ask for the roles AzureML Data Scientist and Storage Blob Data Contributor."),
    ("too many requests", "Azure limits the number of requests. Submit the job again in a few minutes."),
)
_BY_STATUS = {403: "Ask for the role AzureML Data Scientist in the workspace.",
              429: "Azure limits the number of requests. Submit the job again in a few minutes."}  # fmt: skip


def refused(error: Exception) -> LaunchFailed:
    """Return what kept Azure ML from taking a job, in one sentence with a remedy; no signature is in it."""
    if isinstance(error, AzureRefused):
        return LaunchFailed(f"Azure ML rejected the job: {error.message}", code=error.code, hint=error.hint)
    status = getattr(error, "status_code", None)
    message = getattr(getattr(error, "error", None), "message", None) or getattr(error, "message", None) or str(error)
    said = masked(" ".join(str(message).split("\n", 1)[0].split()))[:400].rstrip(".")
    remedy = next((words for sign, words in _REMEDIES if sign in said.lower()), "")
    return LaunchFailed(f"Azure ML rejected the job: {said or type(error).__name__}.", code="azureml-job-rejected",
                        hint=_BY_STATUS.get(status or 0) or remedy)  # fmt: skip
