"""A job on Azure ML: its state, the output and exits of its ranks, and their files.

A thread polls Azure, which may not respond for minutes, and the sign-in may expire during a long job. The job continues
meanwhile, and missed output is read when Azure responds again.

Azure keeps one log file for each process; marks in it name the rank and separate its two streams (``bootstrap``).
Positions in a rank's stream count the bytes of that stream, so a new supervisor reads the files from the start and
skips recorded bytes. Other text, such as the build of the image, is forwarded line by line as one stream.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from distdl_jupyter.azure import identity, settings
from distdl_jupyter.clusters.agents import staging
from distdl_jupyter.clusters.azureml import bootstrap, client
from distdl_jupyter.clusters.azureml.client import ENDED_STATES, Workspace, find_remedy
from distdl_jupyter.clusters.base import Context, Exit, OutageNotifier, Run, RunNotice, Start, Stream
from distdl_jupyter.core import files
from distdl_jupyter.core.errors import AzureRefused, DistDLError, NotSignedIn
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.data.sources import translate_errors
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.worker import owned

#: Seconds between two requests for the state and the logs, and between two cancel requests.
_POLL_SECONDS = 1.0
#: Seconds without a response after which the user is notified.
_OUTAGE_SECONDS = 10.0
#: Seconds for which logs are read after the end of a job, because Azure stores the last lines late. Reading stops
#: earlier if every rank has reported its exit and there is no new output.
_SETTLE_SECONDS = 10.0
#: Seconds after the start of this supervisor in which an unknown job is not an error; Azure may list new jobs late.
_UNKNOWN_SECONDS = 60.0
#: The maximum number of bytes per log request, and of concurrent log requests.
_MAX_BYTES, _MAX_REQUESTS = 4 * 1024 * 1024, 8
#: The folder with the logs of the job's processes.
_PROCESS_LOGS = "user_logs/"
#: The URI of a job's artifacts: the name of the datastore, and the prefix.
_ARTIFACT_URI = re.compile(r"azureml://(?:.*/)?datastores/([^/]+)/(?:paths/)?(.*)")

#: Texts for the states of azure-ai-ml's ``RunStatus`` before the ranks run.
_WAITING_TEXTS = {
    "": "submitted",
    "NotStarted": "submitted",
    "Queued": "waiting for free nodes",
    "Preparing": "preparing the image; the first build takes a few minutes",
    "Provisioning": "starting the nodes",
    "Starting": "preparing the nodes",
    "Paused": "paused",
}
#: The states to which a running job returns if its nodes were preempted.
_REQUEUED_STATES = _WAITING_TEXTS.keys() - {"", "Paused"}
#: The number of recorded bytes of each (rank, stream).
_Offsets = Mapping[tuple[int, str], int]


class AzureMLRun(Run):
    """One submitted job; ``read_offsets`` is the number of recorded bytes of each (rank, stream)."""

    def __init__(
        self, spec: JobSpec, workspace: Workspace, context: Context, read_offsets: _Offsets | None = None
    ) -> None:
        self._workspace = workspace
        self._name = client.build_run_name(spec.id)
        self._folder = context.folder
        self._rank_count = spec.process_count
        self._outage = OutageNotifier(_OUTAGE_SECONDS)
        self._logs = Logs(workspace, context.variables["DISTDL_NONCE"], spec.process_count, read_offsets)
        #: The ranks whose exit has not been reported.
        self._unreported = set(range(spec.process_count))
        self._has_failed = False  # a rank
        self._sent_signals: list[str] = []
        #: Azure's state of the job ("" before the first response), and its message about the failure of the job.
        self._status = self._error = ""
        #: Whether Azure no longer knows the job.
        self._is_unknown = False
        #: Whether the job has ended and all output was forwarded.
        self._is_done = False
        #: The monotonic times of this supervisor's start and of the end of the job (0.0: it runs).
        self._started_at, self._ended_at = time.monotonic(), 0.0
        self._is_closing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="distdl-azureml", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        """Poll Azure until the job has ended and all output has been read, or the run is closed."""
        while not (self._is_closing or self._is_done):
            self._wake.clear()
            polled_at = time.monotonic()
            try:
                if self._sent_signals and not self._has_ended:
                    self._workspace.cancel(self._name)
                if not self._is_unknown:
                    self._read_state(polled_at)
                if not self._logs.is_behind:
                    is_new = self._logs.advance(is_last=self._has_ended)
                    self._ended_at = self._ended_at or (polled_at if self._has_ended else 0.0)
                    is_complete = len(self._logs.exits) == self._rank_count
                    is_settled = polled_at - self._ended_at > _SETTLE_SECONDS or (is_complete and not is_new)
                    self._is_done = self._has_ended and is_settled
            except DistDLError as error:
                is_signed_out = isinstance(error, NotSignedIn) or getattr(error, "status", None) == 401
                text = f"Azure ML is unreachable. The job continues. {error.message} {error.hint}".strip()
                notice = RunNotice("warning", text, "azure-signed-out" if is_signed_out else "azure-silent")
                self._outage.record_failure(polled_at, notice, immediately=is_signed_out)
            else:
                self._outage.record_response(RunNotice("info", "Azure ML is reachable again.", "azure-reachable"))
            if not self._is_done:
                self._wake.wait(_POLL_SECONDS)

    @property
    def _has_ended(self) -> bool:
        return self._status in ENDED_STATES or self._is_unknown

    def _read_state(self, polled_at: float) -> None:
        try:
            details = self._workspace.get_details(self._name)
        except AzureRefused as error:
            if error.status != 404:
                raise
            details, self._is_unknown = {}, polled_at - self._started_at > _UNKNOWN_SECONDS
        self._logs.set_addresses(details.get("logFiles") or {})
        self._error = str(((details.get("error") or {}).get("error") or {}).get("message") or self._error)
        status = str(details.get("status") or self._status)
        if self._status == "Running" and status in _REQUEUED_STATES:
            text = "Azure ML preempted the nodes and queued the job again. It resumes if its code loads a checkpoint."
            self._outage.put(RunNotice("warning", text, "preempted"))
        self._status = status

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Azure ML's own output, then each rank's."""
        return self._logs.streams

    def list_starts(self) -> list[Start]:
        """Return [], because the ranks report their process IDs themselves."""
        return []

    def why_waiting(self) -> str:
        """Return why the job has not started, with Azure's state, or "" if it has started or ended."""
        status = self._status
        if self._logs.started_ranks or self._has_ended or status not in _WAITING_TEXTS:
            return ""
        return f"Azure ML job {self._name}: {_WAITING_TEXTS[status]}{f' ({status})' if status else ''}"

    def take_notices(self) -> list[RunNotice]:
        """Return the notices for the user since the last call."""
        return self._outage.take_notices()

    def poll(self) -> list[Exit]:
        """Return the exits of ranks whose output was forwarded."""
        reports = {} if self._sent_signals[:1] == ["KILL"] else self._logs.exits
        ranks = sorted(self._unreported & reports.keys())
        if len(ranks) == len(self._unreported) and not self._has_ended:
            ranks = ranks[:-1]  # the last exit is reported with the job's end, when Azure has stored all files
        exits = [Exit(rank, **reports[rank]) for rank in ranks]
        self._has_failed = self._has_failed or any(exit_.code != 0 for exit_ in exits)
        if self._is_done and not exits:
            ranks = sorted(self._unreported)
            exits = [Exit(rank, *self._explain_end()) for rank in ranks]
        self._unreported -= set(ranks)
        return exits

    def _explain_end(self) -> tuple[int | None, str | None, str]:
        """Return the code, the signal and the cause for a rank that did not report its exit, from the job's state."""
        if self._sent_signals:
            return None, "KILL" if "KILL" in self._sent_signals else "TERM", ""
        if self._is_unknown:
            return None, None, f"Azure ML no longer knows the job {self._name}."
        if self._status == "Completed":
            return 0, None, "Azure ML completed the job, but the log lacks the last messages of the rank."
        if self._has_failed:
            return None, "TERM", "stopped"
        if self._status == "Canceled" and not self._error:
            return None, "TERM", "The job was canceled in Azure ML."
        if not (text := " ".join(self._error.split())[:600].rstrip(".")):
            return None, None, "The job failed in Azure ML. Azure did not give a reason."
        role = "Storage Blob Data Reader on the storage account for the identity of the compute target"
        return None, None, f"The job failed in Azure ML: {text}. {find_remedy(text, role)}".strip()

    def list_alive(self) -> Sequence[object]:
        """Return the name of the job until Azure has ended it."""
        return [] if self._has_ended else [f"Azure ML job {self._name}"]

    def signal(self, name: str) -> None:
        """Cancel the job, because Azure ML supports nothing else; its ranks receive an interrupt."""
        self._sent_signals.append(name)
        self._wake.set()

    def why_no_stacks(self) -> str:
        """Return why stack traces are not available."""
        return "Azure ML does not support stack traces of running ranks."

    def handle(self) -> dict[str, Any]:
        """Return the names of the workspace; the name of the job follows from the job ID."""
        return {"workspace": self._workspace.names}

    def collect(self) -> None:
        """Download values and outputs."""
        for text in collect(self._workspace, self._name, self._folder, self._rank_count):
            self._outage.put(RunNotice("warning", text, "azureml-files-not-copied"))

    def close(self) -> None:
        """Stop the thread; wait a few seconds for a pending request."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(10.0)
        self._logs.close()
        client.remove_code(self._folder)


@dataclass(slots=True)
class LogFile:
    """One log file of a job."""

    name: str
    #: The current address, which expires after some time, and the number of bytes read.
    url: str = ""
    position: int = 0
    #: The rank and the stream of the next text; the stream is "" outside of a rank's output.
    rank: int = -1
    stream: str = ""
    #: An incomplete mark, and an incomplete line outside of a rank's output.
    mark: bytes = b""
    line: bytes = b""


class Logs:
    """All log files of a job. One thread calls ``advance``; another reads ``exits`` and ``started_ranks``."""

    def __init__(self, workspace: Workspace, nonce: str, ranks: int, read_offsets: _Offsets | None = None) -> None:
        self._workspace = workspace
        self._mark_prefix = bootstrap.build_mark(nonce, "")[:-1]
        self._mark_pattern = re.compile(re.escape(self._mark_prefix) + rb"([^\x1f]*)\x1f")
        #: Whether text outside of ranks' output is forwarded; another supervisor may have forwarded it already.
        self._forwards_other, offsets = read_offsets is None, read_offsets or {}
        self._system_inbox = Inbox()
        keys = [(rank, name) for rank in range(ranks) for name in ("out", "err")]
        #: The unrecorded part of each rank's stream.
        self._inboxes = {key: Inbox(offsets.get(key, 0)) for key in keys}
        rank_streams = (Stream(self._inboxes[key], *key, offsets.get(key, 0)) for key in keys)
        #: The text outside of ranks' output, then each rank's two streams.
        self.streams = (Stream(self._system_inbox, None, "out"), *rank_streams)
        self._files: dict[str, LogFile] = {}
        self._pool = ThreadPoolExecutor(_MAX_REQUESTS, "distdl-azureml-log")
        #: The file from which text outside of ranks' output was last forwarded.
        self._last_file = ""
        #: The reports of ranks about their exit (``bootstrap``): code, signal and evidence.
        self.exits: dict[int, dict[str, Any]] = {}
        self.started_ranks: set[int] = set()

    @property
    def is_behind(self) -> bool:
        """Whether the supervisor has so much unread output that no more is requested."""
        return self._system_inbox.unread + sum(inbox.unread for inbox in self._inboxes.values()) > Inbox.MAX_UNREAD

    def feed(self, file: LogFile, content: bytes, *, is_last: bool = False) -> None:
        """Forward new text of a file; with ``is_last``, also an incomplete line."""
        file.position += len(content)
        *parts, text = self._mark_pattern.split(file.mark + content)
        mark = text[text.rfind(b"\x1e") :] if b"\x1e" in text else b""
        file.mark = mark if mark.startswith(self._mark_prefix) or self._mark_prefix.startswith(mark) else b""
        texts = [*parts[::2], text[: len(text) - len(file.mark)]]
        for chunk, label in zip(texts, [*parts[1::2], b""], strict=True):
            if not file.stream:
                lines, newline, file.line = (file.line + chunk).rpartition(b"\n")
                self._forward(file, lines + newline)
            elif chunk and (file.rank, file.stream) in self._inboxes:  # empty content would end the stream
                self._inboxes[file.rank, file.stream].feed(chunk)
            name, _, value = label.decode(errors="replace").partition(" ")
            if name == "rank":
                file.rank, file.stream = int(value), "out"
                self.started_ranks.add(file.rank)
            elif name == "end":
                self.exits[file.rank], file.stream = json.loads(value), ""
            elif name:
                file.stream = name
        if is_last and file.line:
            self._forward(file, file.line + b"\n")
            file.line = b""

    def _forward(self, file: LogFile, lines: bytes) -> None:
        if lines and self._forwards_other:
            self._system_inbox.feed(lines if file.name == self._last_file else f"[{file.name}]\n".encode() + lines)
            self._last_file = file.name

    def set_addresses(self, addresses: Mapping[str, str]) -> None:
        """Set the addresses of the job's files, which expire after some time."""
        for name, url in addresses.items():
            self._files.setdefault(name, LogFile(name)).url = url

    def advance(self, *, is_last: bool = False) -> bool:
        """Request the new content of every file once, and return whether there was any.

        ``is_last`` completes unfinished lines. Raises DistDLError if Azure does not respond.
        """
        files = [file for file in self._files.values() if file.name.startswith(_PROCESS_LOGS) or not self.started_ranks]
        is_new = False
        for file, content in zip(files, self._pool.map(self._fetch, files), strict=True):
            is_new = is_new or bool(content)
            self.feed(file, content, is_last=is_last)
        return is_new

    def _fetch(self, file: LogFile) -> bytes:
        """Return at most ``_MAX_BYTES`` bytes from the file's position."""
        range_ = f"bytes={file.position}-{file.position + _MAX_BYTES - 1}"
        headers = {"x-ms-range": range_, "Range": range_}
        try:
            response = self._workspace.get_anonymous_client(file.url).send("GET", file.url, headers=headers)
        except AzureRefused as error:
            # The signature has expired, and a new address follows, or the range starts at the end of the file.
            if error.status not in (401, 403, 404, 416):
                raise
            return b""
        content: bytes = response.content
        # A server without range support sends the whole file.
        return content[file.position :] if response.status_code == 200 else content

    def close(self) -> None:
        """End all streams, after the last ``advance``."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for inbox in (self._system_inbox, *self._inboxes.values()):
            inbox.feed(b"")


def collect(workspace: Workspace, name: str, folder: JobFolder, ranks: int) -> list[str]:
    """Download the values and outputs that the job's folder does not have yet; return why values were not copied.

    Raises DataUnavailable, DiskRefused.
    """
    from azure.storage.blob import ContainerClient

    output = (workspace.get_job(name).get("outputs") or {}).get("default") or {}
    match = _ARTIFACT_URI.fullmatch(str(output.get("uri")))
    if match is None:
        return []
    prefix, reasons = f"{match[2].strip('/')}/outputs/", []
    datastore = workspace.get_datastore(match[1])
    url = settings.read().endpoints.blob.format(account=datastore["accountName"])
    container = ContainerClient(url, datastore["containerName"], datastore.get("sasToken") or identity.get_credential())
    with translate_errors(f"The outputs of {name} in Azure ML"), files.explain_disk_errors(folder.path), container:
        for blob in container.list_blobs(name_starts_with=prefix):
            target = find_target_path(blob.name[len(prefix) :], folder)
            if target is None or (blob.metadata or {}).get("hdi_isfolder"):
                continue
            value = target.relative_to(folder.results) if target.is_relative_to(folder.results) else None
            if value is not None and (reason := staging.explain_refusal(value, blob.size, range(ranks))):
                if not target.name.startswith("."):
                    reasons.append(f"{reason}. The file was not copied; it is in the artifacts of the Azure ML job.")
            elif not target.exists() or target.stat().st_size != blob.size:
                partial = target.with_name(f".{target.name}.part")
                target.parent.mkdir(parents=True, exist_ok=True)
                with open(partial, "wb", opener=owned.open_private) as file:
                    container.download_blob(blob.name, max_concurrency=4).readinto(file)
                partial.replace(target)
    return reasons


def find_target_path(name: str, folder: JobFolder) -> Path | None:
    """Return the local path of a file, or None for a name outside of the job's folder."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        return None
    if path.is_relative_to(bootstrap.RESULTS_FOLDER):
        return folder.results / path.relative_to(bootstrap.RESULTS_FOLDER)
    return folder.outputs / path
