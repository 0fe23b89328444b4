"""A job on Azure ML: its state, the output and the ends of its ranks, which its processes write into Azure's logs.

A thread asks Azure, which can be silent for minutes; a sign-in can expire while a job runs for days. The job continues
meanwhile, and what was missed is read when Azure responds again. Another supervisor can continue with the names of
workspace and job alone.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from distdl_jupyter.azure import identity, settings
from distdl_jupyter.clusters.agents import staging
from distdl_jupyter.clusters.azureml import errors, job
from distdl_jupyter.clusters.azureml.bootstrap import RESULTS
from distdl_jupyter.clusters.azureml.logs import Logs
from distdl_jupyter.clusters.base import Context, Exit, Notice, OutageNotifier, Run, Start, Stream
from distdl_jupyter.core import limits
from distdl_jupyter.core.errors import AzureRefused, DistDLError, LaunchFailed, NotSignedIn
from distdl_jupyter.worker import owned
from distdl_jupyter.worker.secret_patterns import mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distdl_jupyter.clusters.azureml.client import Workspace
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder

#: Seconds between two requests for logs: while something is new, and at most.
_QUICK, _SLOW = 0.3, 2.0
#: Seconds between two requests for a run's state and files: while its ranks begin or end, and in between.
_SOON, _LATER = 1.0, 5.0
#: Seconds without a response after which the user is notified.
_SILENCE = 10.0
#: Seconds after a job's end in which its last lines may still arrive, and where no rank has begun.
_SETTLE, _SHORT = 10.0, 3.0
#: Seconds after the start in which Azure may not know the run yet.
_YOUNG = 60.0
#: Seconds between two requests for the end.
_REPEAT = 10.0
_UNAUTHORIZED = 401
_ARTIFACTS = re.compile(r"azureml://(?:.*/)?datastores/([^/]+)/(?:paths/)?(.*)")

ENDED = frozenset({"Completed", "Failed", "Canceled"})
#: azure-ai-ml's ``RunStatus`` before the ranks run, in words.
_WAITING = {
    "": "was submitted",
    "NotStarted": "was submitted",
    "Queued": "waiting for free nodes",
    "Preparing": "preparing the image; the first build takes a few minutes",
    "Provisioning": "starting the nodes",
    "Starting": "preparing the nodes",
    "Paused": "is paused",
}
#: What a running job becomes when its nodes are taken away.
_REQUEUED = _WAITING.keys() - {"", "Paused"}


def waiting(status: str) -> str:
    """Return why a job has not begun, with Azure's word, "" for one that has."""
    text = _WAITING.get(status)
    return "" if text is None else text + (f" ({status})" if status else "")


class Watch(threading.Thread):
    """Follows one run until it has ended and everything was read, or ``stop`` is called."""

    def __init__(self, workspace: Workspace, name: str, logs: Logs) -> None:
        super().__init__(name="distdl-azureml", daemon=True)
        self._workspace = workspace
        self._name = name
        self._logs = logs
        self.status = ""
        #: Azure's message of a failure.
        self.error = ""
        #: Whether Azure does not know the run any more.
        self.forgotten = False
        #: Whether the job has ended and all its output was passed on.
        self.done = False
        self.silence = OutageNotifier(_SILENCE)
        self._began = time.monotonic()
        self._asked = 0.0
        self._ended_at: float | None = None
        self._cancel_requested = False
        self._canceled_at = 0.0
        self._pause = _QUICK
        self._wake = threading.Event()
        self._stop_requested = False

    def run(self) -> None:
        """Request, read, pause."""
        while not self._stop_requested and not self.done:
            self._wake.clear()
            self._poll()
            if not self.done:
                self._wake.wait(self._pause)

    @property
    def ended(self) -> bool:
        """Whether Azure has ended the job."""
        return self.status in ENDED or self.forgotten

    def cancel(self) -> None:
        """Request the job's end until Azure has ended it."""
        self._cancel_requested = True
        self._wake.set()

    def stop(self) -> None:
        """End the thread; wait some seconds for a request in progress."""
        self._stop_requested = True
        self._wake.set()
        self.join(10.0)

    def _poll(self) -> None:
        asked_at = time.monotonic()
        try:
            if self._cancel_requested and not self.ended and asked_at - self._canceled_at >= _REPEAT:
                cancel(self._workspace, self._name)
                self._canceled_at, self._asked = asked_at, 0.0
            is_running = self._logs.begun and not self._logs.ends and not self._cancel_requested
            pause = _LATER if is_running else _SOON
            if not self.ended and (self._logs.stale or asked_at - self._asked >= pause):
                self._read_state()
            self._read_logs()
        except NotSignedIn as error:
            self._missed(asked_at, f"{error.message} {error.hint}".strip(), is_signed_out=True)
        except DistDLError as error:
            is_signed_out = getattr(error, "status", None) == _UNAUTHORIZED
            self._missed(asked_at, error.message, is_signed_out=is_signed_out)
        else:
            self.silence.answered(Notice("info", "Azure ML is reachable again.", "azure-answers"))

    def _read_state(self) -> None:
        try:
            details = self._workspace.details(self._name)
        except AzureRefused as error:
            if error.status != 404:
                raise
            self._asked = time.monotonic()
            self.forgotten = self._asked - self._began > _YOUNG
            return
        self._asked = time.monotonic()
        self._logs.set_addresses(details.get("logFiles") or {})
        self.error = errors.message_of(details) or self.error
        status = str(details.get("status") or "")
        if self.status == "Running" and status in _REQUEUED:
            text = (
                "Azure ML preempted the low-priority nodes and queued the job again. It restarts from the latest "
                "checkpoint if the code loads one."
            )
            self.silence.put(Notice("warning", text, "preempted"))
        self.status = status

    def _read_logs(self) -> None:
        if self._logs.behind:
            return
        is_new = self._logs.advance(last=self.ended)
        self._pause = _QUICK if is_new or self.ended else min(_SLOW, self._pause * 1.3)
        if not self.ended:
            return
        now = time.monotonic()
        self._ended_at = self._ended_at or now
        settle = _SETTLE if self._logs.begun or self.status == "Completed" else _SHORT
        self.done = now - self._ended_at > settle or (self._logs.complete and not is_new)
        if not self.done and not self.forgotten and now - self._asked >= _SOON:
            self._asked = now
            self._logs.set_addresses(self._workspace.details(self._name).get("logFiles") or {})

    def _missed(self, asked_at: float, reason: str, *, is_signed_out: bool) -> None:
        self._pause = _SLOW
        text = f"Azure ML is unreachable. The job continues. {reason}"
        notice = Notice("warning", text, "azure-signed-out" if is_signed_out else "azure-silent")
        self.silence.missed(asked_at, notice, at_once=is_signed_out)


class AzureMLRun(Run):
    """One submitted job. ``read`` says how much of each (rank, stream) was recorded before."""

    def __init__(
        self,
        spec: JobSpec,
        workspace: Workspace,
        name: str,
        context: Context,
        *,
        studio: str = "",
        read: Mapping[tuple[int, str], int] | None = None,
        notices: Sequence[Notice] = (),
    ) -> None:
        self._workspace = workspace
        self._name = name
        self._folder = context.folder
        self._studio = studio
        self._ranks = spec.process_count
        self._notices = list(notices)
        limits.allow_files(4 * spec.process_count)
        self._logs = Logs(workspace, context.own["DISTDL_NONCE"], spec.process_count, read)
        self._watch = Watch(workspace, name, self._logs)
        self._open = set(range(spec.process_count))
        self._failed = False
        self._sent: list[str] = []
        self._watch.start()

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Azure ML's own output, then each rank's."""
        return self._logs.streams

    def started(self) -> list[Start]:
        """Return nothing: ranks report their pids themselves."""
        return []

    def waiting(self) -> str:
        """Return why the job has not begun, with Azure's word."""
        reason = "" if self._logs.begun or self._watch.ended else waiting(self._watch.status)
        return f"Azure ML job {self._name}: {reason}" if reason else ""

    def notices(self) -> list[Notice]:
        """Return what the user should know of the job."""
        notices, self._notices = self._notices + self._watch.silence.notices(), []
        return notices

    def poll(self) -> list[Exit]:
        """Return the ranks that have ended and whose output was passed on."""
        ends = {} if self._sent[:1] == ["KILL"] else self._logs.ends
        ranks = sorted(self._open & ends.keys())
        if len(ranks) == len(self._open) and not self._watch.ended:
            ranks = ranks[:-1]  # the last one ends with the job: Azure still has to store what they left
        exits = [Exit(rank, ends[rank]["code"], ends[rank]["signal"], str(ends[rank]["evidence"])) for rank in ranks]
        self._failed = self._failed or any(exit_.code != 0 for exit_ in exits)
        self._open -= set(ranks)
        if self._watch.done and not exits:
            exits = [self._exit_by_status(rank) for rank in sorted(self._open)]
            self._open.clear()
        return exits

    def _exit_by_status(self, rank: int) -> Exit:
        """Return the end of a rank that reported none."""
        if self._sent:
            return Exit(rank, None, "KILL" if "KILL" in self._sent else "TERM")
        if self._watch.forgotten:
            return Exit(rank, None, None, f"Azure ML no longer knows the job {self._name}.")
        if self._watch.status == "Completed":
            return Exit(rank, 0, None, "Azure ML completed the job, but the log lacks the last messages of the rank.")
        if self._failed:
            return Exit(rank, None, "TERM", "stopped")
        if self._watch.status == "Canceled" and not self._watch.error:
            return Exit(rank, None, "TERM", "The job was canceled in Azure ML.")
        return Exit(rank, None, None, errors.failure(self._watch.error))

    def alive(self) -> Sequence[object]:
        """Return the job itself as long as Azure has not ended it."""
        return [] if self._watch.ended else [f"Azure ML job {self._name}"]

    def signal(self, name: str) -> None:
        """Cancel the job, which is all that Azure ML supports; its ranks get that as an interrupt."""
        self._sent.append(name)
        self._watch.cancel()

    def no_stacks(self) -> str:
        """Return why: a running job there accepts no requests."""
        return "Azure ML does not support stack traces of running ranks."

    def handle(self) -> dict[str, Any]:
        """Return the names of workspace and job."""
        return {"workspace": self._workspace.address.to_json(), "run": self._name, "studio": self._studio}

    def collect(self) -> None:
        """Download values and outputs."""
        skipped = collect(self._workspace, self._name, self._folder, self._ranks)
        self._notices += [Notice("warning", text, "azureml-files-not-copied") for text in skipped]

    def close(self) -> None:
        """Stop the thread."""
        self._watch.stop()
        self._logs.close()
        job.remove_code(self._folder)


def cancel(workspace: Workspace, name: str) -> bool:
    """Request the end of a job; False when it has ended or does not exist. Raises DistDLError."""
    try:
        if str(workspace.job(name)["properties"].get("status")) in ENDED:
            return False
        workspace.cancel(name)
    except AzureRefused as error:
        if error.status not in (400, 404, 409):
            raise
        return False
    return True


# outputs ------------------------------------------------------------------------------------------


def collect(workspace: Workspace, name: str, folder: JobFolder, ranks: int) -> list[str]:
    """Download values to ``results`` and files to ``outputs`` of the job's folder; return why values were not copied.

    The job's record names the datastore and the prefix of its artifacts. Raises LaunchFailed.
    """
    from azure.core.exceptions import AzureError

    outputs = workspace.job(name)["properties"].get("outputs") or {}
    match = _ARTIFACTS.fullmatch(str((outputs.get("default") or {}).get("uri") or ""))
    if match is None:
        return []
    try:
        return _download_all(workspace, match[1], f"{match[2].strip('/')}/outputs/", folder, range(ranks))
    except AzureError as error:
        text = mask(str(error).strip().split("\n", 1)[0])[:300].rstrip(".")
        raise LaunchFailed(
            f"Cannot download the outputs of the ranks: {text}.",
            code="azureml-outputs-not-downloaded",
            hint="Ask for the role Storage Blob Data Reader on the workspace's storage account. The files are in the "
            "outputs of the job in Azure ML.",
        ) from None
    except OSError as error:
        raise LaunchFailed(
            f"Cannot store the outputs of the ranks in {folder.path}: {error.strerror}.",
            code="azureml-outputs-not-stored",
            hint="Free disk space, or check the permissions of that folder.",
        ) from error


def _download_all(workspace: Workspace, datastore: str, prefix: str, folder: JobFolder, ranks: range) -> list[str]:
    skipped = []
    with _container(workspace, datastore) as container:
        for blob in container.list_blobs(name_starts_with=prefix):
            target = target_path(blob.name[len(prefix) :], folder)
            if target is None or (blob.metadata or {}).get("hdi_isfolder"):
                continue
            value = target.relative_to(folder.results) if target.is_relative_to(folder.results) else None
            reason = staging.result_refusal(value, blob.size, ranks) if value is not None else ""
            if not reason:
                _download(container.get_blob_client(blob.name), blob.size, target)
            elif not target.name.startswith("."):
                skipped.append(f"{reason}. The file was not copied; it is in the artifacts of the run.")
    return skipped


def _container(workspace: Workspace, name: str) -> Any:
    from azure.storage.blob import ContainerClient

    store = workspace.datastore(name)
    account, container = str(store["accountName"]), str(store["containerName"])
    credential = _signature(workspace, name, store) or identity.credential()
    return ContainerClient(settings.read().endpoints.blob.format(account=account), container, credential=credential)


def _signature(workspace: Workspace, name: str, store: dict[str, Any]) -> str:
    """Return the short-lived signature for reading a datastore, "" where it uses the user's account.

    An account key is never used, because it allows everything.
    """
    if (store.get("credentials") or {}).get("credentialsType", "None") == "None":
        return ""
    try:
        return str(workspace.secrets(name).get("sasToken") or "")
    except DistDLError:
        return ""


def target_path(name: str, folder: JobFolder) -> Path | None:
    """Return where a file is stored, None for a name that leads out of the job's folder."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        return None
    if path.is_relative_to(RESULTS):
        return folder.results / path.relative_to(RESULTS)
    return folder.outputs / path


def _download(blob: Any, size: int, target: Path) -> None:
    """Download a blob that is not there yet. The library repeats requests that fail. Raises AzureError, OSError."""
    if target.exists() and target.stat().st_size == size:
        return
    part = target.with_name(f".{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(part, "wb", opener=owned.private) as file:
        blob.download_blob(max_concurrency=4).readinto(file)
    part.replace(target)
