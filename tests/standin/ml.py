"""Azure Machine Learning: workspaces, code, environments, jobs that really run, run history, logs read by ranges.

A job runs as Azure ML runs it: the code is fetched from where it was uploaded, laid out once for each node, and its
command is started ``instanceCount`` x ``processCountPerInstance`` times on this machine: by ``mpirun`` for Mpi, with
``MASTER_ADDR``, ``RANK`` and their companions for PyTorch, with ``TF_CONFIG`` for TensorFlow. What each process prints
goes to a log file of its own, which is served while it grows; ``outputs`` goes to the artifact store at the end. The
image is this machine's own environment: what an image lacks or contains is not shown here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.processes import free_port
from tests.standin.computes import ML, SUBSCRIPTION, missing
from tests.standin.computes import WORKSPACE as _WS
from tests.standin.server import Answer, Request, Server, refusal

GROUP, WORKSPACE, COMPUTE = "vision", "ws1", "gpu"
_ENDED = ("Completed", "Failed", "Canceled")
_ARTIFACTS = "azureml"
#: api-versions as azure-ai-ml 1.35.2 sends them, by the kind of resource.
_VERSIONS = {
    "codes": {"2023-04-01"},
    "environments": {"2023-04-01-preview"},
    "cancel": {"2023-04-01-preview"},
    "jobs": {"2025-01-01-preview", "2024-01-01-preview", "2023-04-01-preview"},
    "datastores": {"2024-10-01-preview"},
}


@dataclass
class Job:
    name: str
    body: dict[str, Any]
    folder: Path
    status: str = "NotStarted"
    error: str = ""
    canceled: bool = False
    preempted: bool = False
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    thread: threading.Thread | None = None

    @property
    def properties(self) -> dict[str, Any]:
        return self.body["properties"]

    @property
    def logs(self) -> Path:
        return self.folder / "logs"


class MachineLearning:
    """Attributes are what a test sets: see each one's comment."""

    def __init__(self, server: Server, azurite: Any, folder: Path, login: Any = None) -> None:
        self.server, self.azurite, self.folder, self.login = server, azurite, folder, login
        self.jobs: dict[str, Job] = {}
        self.environments: dict[tuple[str, str], dict[str, Any]] = {}
        #: Code assets by (name, version): the container that holds their files.
        self.codes: dict[tuple[str, str], str] = {}
        self._uploads: dict[tuple[str, str], str] = {}
        #: Statuses in which jobs stay until the test takes them out.
        self.holds: set[str] = set()
        #: Text of the image's build log, and what the build fails with ("" for success).
        self.build_log, self.build_error = "", ""
        #: Seconds between SIGTERM and SIGKILL when a job is canceled.
        self.grace = 20.0
        #: Seconds between the end of the processes and the moment in which their outputs can be read.
        self.finalizing = 0.0
        #: (method, pattern of the path, answer): used up one by one.
        self.faults: list[tuple[str, str, Answer]] = []
        self._lock = threading.RLock()
        self._temporaries: list[str] = []
        self._signatures: set[str] = set()
        for method, pattern, handler in (
            ("GET", r"/discovery/.*", self._discovery),
            ("GET", rf"{_WS}/codes/(?P<name>[^/]+)/versions", lambda _: {"value": []}),
            ("POST", rf"{_WS}/codes/(?P<name>[^/]+)/versions/(?P<version>[^/]+)/startPendingUpload", self._upload),
            ("PUT", rf"{_WS}/codes/(?P<name>[^/]+)/versions/(?P<version>[^/]+)", self._put_code),
            ("GET", rf"{_WS}/environments/(?P<name>[^/]+)/versions/(?P<version>[^/]+)", self._get_environment),
            ("PUT", rf"{_WS}/environments/(?P<name>[^/]+)/versions/(?P<version>[^/]+)", self._put_environment),
            ("GET", rf"{_WS}/datastores/(?P<name>[^/]+)", self._datastore),
            ("PUT", rf"{_WS}/jobs/(?P<name>[^/]+)", self._put_job),
            ("GET", rf"{_WS}/jobs/(?P<name>[^/]+)", self._of_job(self._record)),
            ("POST", rf"{_WS}/jobs/(?P<name>[^/]+)/cancel", self._of_job(self._cancel)),
            ("GET", rf"{_WS}/cancelled/(?P<name>[^/]+)", lambda _: Answer("", 200)),
            ("GET", rf"/ml-api/history/v1\.0{_WS}/runs/(?P<name>[^/]+)/details", self._of_job(self._details)),
            ("GET", r"/logs/(?P<name>[^/]+)/(?P<file>.+)", self._log),
        ):
            server.route(method, pattern, self._checked(handler))

    # what a test does -------------------------------------------------------------------------------

    @property
    def options(self) -> dict[str, str]:
        """The options of a cluster here."""
        return {
            "subscription_id": SUBSCRIPTION,
            "resource_group": GROUP,
            "workspace": WORKSPACE,
            "compute": COMPUTE,
            "environment": "registry.example/standin:1",
            "python": sys.executable,
        }

    def preempt(self, job: Job) -> None:
        """Take the nodes away, as happens to low-priority ones."""
        job.preempted = True
        self._kill(job)

    def expire(self) -> None:
        """Let every address of a log that was given away be good no more."""
        with self._lock:
            self._signatures.clear()

    def close(self) -> None:
        self.holds.clear()
        for job in self.jobs.values():
            job.canceled = True
            self._kill(job)
            if job.thread is not None:
                job.thread.join(30)
        for folder in self._temporaries:
            shutil.rmtree(folder, ignore_errors=True)

    # requests ---------------------------------------------------------------------------------------

    def _checked(self, handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        def answer(request: Request) -> Any:
            with self._lock:
                return self._faulty(request) or self._refused(request) or handler(request)

        return answer

    def _faulty(self, request: Request) -> Answer | None:
        for at, (method, pattern, answer) in enumerate(self.faults):
            if method == request.method and re.search(pattern, request.path):
                del self.faults[at]
                return answer
        return None

    def _refused(self, request: Request) -> Answer | None:
        open_to_all = request.path.startswith(("/logs/", "/discovery/"))
        bearer = request.headers.get("authorization", "")
        if open_to_all:
            return refusal(400, "TokenSent", "nobody needs a token here") if bearer else None
        if not bearer.startswith("Bearer ") or (self.login is not None and not self.login.bearer(request)):
            return refusal(401, "AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
        return self._wrong_version(request) or missing(request)

    def _wrong_version(self, request: Request) -> Answer | None:
        version = request.query.get("api-version", "")
        if request.path.startswith("/ml-api/"):
            return None if version == "v1.0" else refusal(400, "NoVersion", "api-version=v1.0 is required")
        rest = request.path.partition("/workspaces/")[2].split("/")[1:]
        kind = "cancel" if rest[-1] == "cancel" else rest[0]
        if kind == "cancelled" or version in _VERSIONS[kind]:
            return None
        return refusal(400, "InvalidApiVersionParameter", f"The api-version {version!r} is invalid for {kind}.")

    def _id(self, request: Request, rest: str = "") -> str:
        sub, group, ws = (request.words[one] for one in ("sub", "group", "ws"))
        return f"/subscriptions/{sub}/resourceGroups/{group}{ML}/workspaces/{ws}{rest}"

    def _discovery(self, _: Request) -> Any:
        return {"api": f"{self.server.address}/ml-api", "history": f"{self.server.address}/ml-api"}

    # code, environments, datastores -------------------------------------------------------------------

    def _upload(self, request: Request) -> Any:
        from azure.storage.blob import generate_container_sas

        if request.json != {"pendingUploadType": "TemporaryBlobReference"}:
            return refusal(400, "BadRequest", f"not an upload: {request.json}")
        container = self.azurite.container(f"code-{uuid.uuid4()}").name
        sas = generate_container_sas(
            self.azurite.account,
            container,
            self.azurite.key,
            permission="racwl",
            expiry=datetime.now(UTC) + timedelta(hours=1),
        )
        uri = f"{self.azurite.endpoint}/{container}"
        self._uploads[request.words["name"], request.words["version"]] = container
        return {
            "pendingUploadId": str(uuid.uuid4()),
            "pendingUploadType": "TemporaryBlobReference",
            "blobReferenceForConsumption": {
                "blobUri": uri,
                "storageAccountArmId": "/subscriptions/x/storageAccounts/y",
                "credential": {"credentialType": "SAS", "sasUri": f"{uri}?{sas}"},
            },
        }

    def _put_code(self, request: Request) -> Any:
        key = request.words["name"], request.words["version"]
        uri = request.json["properties"]["codeUri"]
        container = self._uploads.get(key, "")
        if not container or f"/{container}" not in uri:
            return refusal(400, "UserError", f"The code {uri} was not uploaded.")
        self.codes[key] = container
        id_ = self._id(request, f"/codes/{key[0]}/versions/{key[1]}")
        return Answer({"id": id_, "name": key[1], "properties": request.json["properties"]}, 201)

    def _get_environment(self, request: Request) -> Any:
        found = self.environments.get((request.words["name"], request.words["version"]))
        return found or refusal(404, "UserError", f"Environment {request.words['name']} was not found.")

    def _put_environment(self, request: Request) -> Any:
        key = request.words["name"], request.words["version"]
        told = request.json["properties"]
        if not told.get("image") and not told.get("build"):
            return refusal(400, "UserError", "An environment needs an image or a build context.")
        id_ = self._id(request, f"/environments/{key[0]}/versions/{key[1]}")
        self.environments[key] = {"id": id_, "name": key[1], "properties": told}
        return Answer(self.environments[key], 201)

    def _datastore(self, request: Request) -> Any:
        name = request.words["name"]
        container = {"workspaceartifactstore": _ARTIFACTS, "workspaceblobstore": "azureml-blobstore"}.get(name)
        if container is None:
            return refusal(404, "UserError", f"Could not find datastore: {name}")
        return {
            "id": self._id(request, f"/datastores/{name}"),
            "name": name,
            "properties": {
                "datastoreType": "AzureBlob",
                "accountName": self.azurite.account,
                "isDefault": False,
                "containerName": container,
                "endpoint": "core.windows.net",
                "protocol": "https",
                "credentials": {"credentialsType": "None"},
            },
        }

    # jobs -------------------------------------------------------------------------------------------

    def _put_job(self, request: Request) -> Any:
        name, told = request.words["name"], request.json["properties"]
        if name in self.jobs:
            return refusal(409, "UserError", f"Job {name} already exists.")
        wrong = self._wrong_job(told)
        if wrong:
            return refusal(400, "UserError", wrong)
        job = self.jobs[name] = Job(name, request.json, self.folder / name)
        job.logs.mkdir(parents=True)
        job.thread = threading.Thread(target=self._run, args=(job,), daemon=True)
        job.thread.start()
        return Answer(self._record(request, job), 201)

    def _wrong_job(self, told: dict[str, Any]) -> str:
        if told.get("jobType") != "Command" or not told.get("command"):
            return "A command job is expected."
        if told.get("computeId") and told["computeId"].rpartition("/")[2] != COMPUTE:
            return f"Unknown compute target '{told['computeId'].rpartition('/')[2]}'."
        code = re.search(r"/codes/([^/]+)/versions/([^/]+)$", told.get("codeId", ""))
        if code is None or (code[1], code[2]) not in self.codes:
            return f"The code {told.get('codeId')} is not there."
        environment = re.search(r"/environments/([^/]+)/versions/([^/]+)$", told.get("environmentId", ""))
        if environment is None or (environment[1], environment[2]) not in self.environments:
            return f"Environment {told.get('environmentId')} was not found."
        return ""

    def _record(self, request: Request, job: Job) -> dict[str, Any]:
        uri = f"azureml://datastores/workspaceartifactstore/paths/ExperimentRun/dcid.{job.name}/"
        outputs = {
            **(job.properties.get("outputs") or {}),
            "default": {"jobOutputType": "uri_folder", "mode": "ReadWriteMount", "uri": uri},
        }
        studio = {"jobServiceType": "Studio", "endpoint": f"{self.server.address}/runs/{job.name}?wsid=x"}
        return {
            "id": self._id(request, f"/jobs/{job.name}"),
            "name": job.name,
            "properties": {**job.properties, "status": job.status, "outputs": outputs, "services": {"Studio": studio}},
        }

    def _of_job(self, handler: Callable[[Request, Job], Any]) -> Callable[[Request], Any]:
        def answer(request: Request) -> Any:
            name = request.words["name"]
            if name not in self.jobs:
                return refusal(404, "UserError", f"Run {name} was not found.")
            return handler(request, self.jobs[name])

        return answer

    def _cancel(self, request: Request, job: Job) -> Any:
        if job.status in _ENDED:
            return refusal(400, "UserError", f"Job {job.name} is already in a terminal state.")
        if not job.canceled:
            job.canceled = True
            job.status = "CancelRequested"
            threading.Thread(target=self._end, args=(job,), daemon=True).start()
        where = f"{self.server.address}{self._id(request)}/cancelled/{job.name}?api-version=2023-04-01-preview"
        return Answer("", 202, {"Location": where, "Retry-After": "1"})

    def _details(self, _: Request, job: Job) -> Any:
        files = sorted(path.relative_to(job.logs).as_posix() for path in job.logs.rglob("*") if path.is_file())
        error = {"error": {"code": "UserError", "message": job.error}} if job.error else None
        return {
            "runId": job.name,
            "status": job.status,
            "error": error,
            "logFiles": {file: self._signed(job, file) for file in files},
        }

    def _signed(self, job: Job, file: str) -> str:
        signature = uuid.uuid4().hex
        self._signatures.add(signature)
        return f"{self.server.address}/logs/{job.name}/{file}?sv=2019-07-07&sr=b&sp=r&sig={signature}"

    def _log(self, request: Request) -> Any:
        if request.query.get("sig", "") not in self._signatures:
            return Answer("<Error><Code>AuthenticationFailed</Code></Error>", 403)
        whole = (self.jobs[request.words["name"]].logs / request.words["file"]).read_bytes()
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if found is None:
            return refusal(400, "WholeFile", "logs are read by ranges here")
        start = int(found[1])
        if start >= len(whole):
            return Answer("<Error><Code>InvalidRange</Code></Error>", 416, {"Content-Range": f"bytes */{len(whole)}"})
        end = min(int(found[2] or len(whole)) + 1, len(whole))
        told = {"Content-Range": f"bytes {start}-{end - 1}/{len(whole)}", "Content-Type": "text/plain"}
        return Answer(whole[start:end], 206, told)

    # how a job runs ----------------------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        try:
            self._lead(job)
        except Exception as error:  # noqa: BLE001 - whatever breaks here must not leave a job that never ends
            job.error, job.status = f"the stand-in failed: {error!r}", "Failed"

    def _lead(self, job: Job) -> None:
        if not self._prepared(job):
            return
        codes = self._executed(job)
        if not job.canceled:
            self._becomes(job, "Finalizing")
        time.sleep(self.finalizing)
        self._keep_outputs(job)
        if job.canceled:
            job.status = "Canceled"
        elif any(codes):
            job.error = f"Execution failed. User process 'python' exited with status code {next(filter(None, codes))}."
            job.status = "Failed"
        else:
            job.status = "Completed"

    def _prepared(self, job: Job) -> bool:
        for status in ("Queued", "Preparing", "Provisioning", "Starting"):
            if status == "Preparing":
                self._tell_build(job)
            if not self._becomes(job, status):
                job.status = "Canceled"
                return False
            if status == "Preparing" and self.build_error:
                job.error, job.status = self.build_error, "Failed"
                return False
        return True

    def _executed(self, job: Job) -> list[int]:
        """Run the job's processes, anew when its nodes are taken away, and return their codes."""
        while True:
            self._lay_out(job)
            self._start(job)
            if job.canceled:
                self._kill(job)  # it was, while its processes began
            else:
                job.status = "Running"
            codes = [process.wait() for process in job.processes]
            self._kill(job)
            if not job.preempted:
                return codes
            job.preempted, job.processes = False, []
            self._becomes(job, "Queued")

    def _becomes(self, job: Job, status: str) -> bool:
        job.status = status
        while status in self.holds and not job.canceled:
            time.sleep(0.02)
        return not job.canceled

    def _tell_build(self, job: Job) -> None:
        if self.build_log:
            path = job.logs / "azureml-logs/20_image_build_log.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.build_log)

    def _lay_out(self, job: Job) -> None:
        """Fetch the code as a node does, once for each."""
        code = re.search(r"/codes/([^/]+)/versions/([^/]+)$", job.properties["codeId"])
        container = self.azurite.service.get_container_client(self.codes[code[1], code[2]])
        for node in range(self._nodes(job)):
            root = job.folder / f"node-{node}" / "wd"
            shutil.rmtree(root, ignore_errors=True)
            for blob in container.list_blobs():
                path = root / blob.name.partition("/")[2]  # below the folder's own name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(container.download_blob(blob.name).readall())

    def _nodes(self, job: Job) -> int:
        return int((job.properties.get("resources") or {}).get("instanceCount") or 1)

    def _start(self, job: Job) -> None:
        distribution = job.properties.get("distribution") or {}
        kind, nodes = distribution.get("distributionType"), self._nodes(job)
        per_node = int(distribution.get("processCountPerInstance") or 1)
        script = job.folder / "process.sh"
        log = "std_log.txt" if nodes * per_node == 1 else "std_log_process_%02d.txt"
        command = shlex.quote(self._command(job))
        script.write_text(_SCRIPT.format(folder=job.folder, per_node=per_node, command=command, log=log))
        (job.logs / "user_logs").mkdir(parents=True, exist_ok=True)
        base = self._environment(job)
        if kind == "Mpi":
            options = f"--allow-run-as-root -np {nodes * per_node} --bind-to none --map-by :OVERSUBSCRIBE"
            argv = ["mpirun", *options.split(), "bash", str(script)]
            job.processes = [_started(argv, {**base, "AZ_BATCH_MASTER_NODE": "127.0.0.1:6000"}, job.folder)]
            return
        port = free_port()
        workers = [f"127.0.0.1:{free_port()}" for _ in range(nodes)]
        for rank in range(nodes * per_node):
            own = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "WORLD_SIZE": str(nodes * per_node),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % per_node),
                "NODE_RANK": str(rank // per_node),
            }
            if kind == "TensorFlow":
                task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
                own = {"TF_CONFIG": json.dumps(task)}
            elif kind != "PyTorch":
                own = {}
            argv = ["bash", str(script)]
            job.processes.append(_started(argv, {**base, **own, "STANDIN_RANK": str(rank)}, job.folder))

    def _command(self, job: Job) -> str:
        command = job.properties["command"]
        for name in job.properties.get("inputs") or {}:
            command = command.replace("${{inputs." + name + "}}", str(job.folder / "inputs" / name))
        return command

    def _environment(self, job: Job) -> dict[str, str]:
        """Return what a container has: nothing of this test's own environment but its programs."""
        # Open MPI's sockets lie there, so its path is short.
        temporary = tempfile.mkdtemp(prefix="ml-", dir="/tmp")
        self._temporaries.append(temporary)
        for name in job.properties.get("inputs") or {}:
            (job.folder / "inputs" / name).mkdir(parents=True, exist_ok=True)
        return {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(job.folder),
            "LANG": "C.UTF-8",
            "TMPDIR": temporary,
            "AZUREML_RUN_ID": job.name,
            "GLOO_SOCKET_IFNAME": "lo",  # on a node, the host name resolves to an address of its network
            **(job.properties.get("environmentVariables") or {}),
        }

    def _keep_outputs(self, job: Job) -> None:
        service = self.azurite.service
        with contextlib.suppress(Exception):
            service.create_container(_ARTIFACTS)
        container = service.get_container_client(_ARTIFACTS)
        for root in sorted(job.folder.glob("node-*/wd/outputs")):
            for path in sorted(path for path in root.rglob("*") if path.is_file()):
                name = f"ExperimentRun/dcid.{job.name}/outputs/{path.relative_to(root).as_posix()}"
                container.upload_blob(name, io.BytesIO(path.read_bytes()), overwrite=True)

    def _end(self, job: Job) -> None:
        """End a canceled job as ``docker stop`` does: SIGTERM, then, after a while, SIGKILL."""
        for process in list(job.processes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
        until = time.monotonic() + self.grace
        while any(process.poll() is None for process in job.processes) and time.monotonic() < until:
            time.sleep(0.05)
        self._kill(job)

    def _kill(self, job: Job) -> None:
        """End every process of the job's containers."""
        for _ in range(100):
            left = _marked(job.name)
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


_SCRIPT = """
rank=${{OMPI_COMM_WORLD_RANK:-$STANDIN_RANK}}
node=$((rank / {per_node}))
if [ -n "$OMPI_COMM_WORLD_RANK" ]; then
    export OMPI_COMM_WORLD_LOCAL_RANK=$((rank % {per_node})) OMPI_COMM_WORLD_LOCAL_SIZE={per_node}
fi
unset STANDIN_RANK
cd {folder}/node-$node/wd
exec >>{folder}/logs/user_logs/$(printf {log} $rank) 2>&1 </dev/null
exec bash -c {command}
"""


def _started(argv: list[str], environment: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "stand-in.txt").open("ab") as own:
        return subprocess.Popen(
            argv, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=own, stderr=own, start_new_session=True
        )


def _marked(name: str) -> list[int]:
    """Return the living processes that carry the run's name."""
    found, mark = [], f"AZUREML_RUN_ID={name}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found
