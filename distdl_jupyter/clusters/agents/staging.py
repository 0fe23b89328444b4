"""Copies a job and its data to hosts that do not share its folder, and its results back.

A host shares the folder if it sees a file there that this machine has just written. Any other host receives a folder
with the payload, the modules next to the notebook, and the script. The program ``data.stager`` then brings data and
packages to each node. A host that lacks a data folder of this machine gets a copy, which it keeps for later jobs.
"""

from __future__ import annotations

import contextlib
import filecmp
import functools
import hashlib
import io
import json
import math
import queue
import re
import secrets
import tarfile
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.agents.agent import AgentNode, HostFailed, JobNodes, NodeData, query_or_raise
from distdl_jupyter.clusters.agents.connection import DEFAULT_DIRECTORY, Connection, end_all
from distdl_jupyter.clusters.base import Context, RunNotice
from distdl_jupyter.core import humanize
from distdl_jupyter.core.errors import DataUnavailable, DistDLError, LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.plan import Placement, RankSlot
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.data.staging import JobStaging
from distdl_jupyter.node import files
from distdl_jupyter.node.channels import Inbox
from distdl_jupyter.node.data_cache import fingerprint
from distdl_jupyter.node.job import DATA

#: Seconds between two checks for a cancellation, and timeouts of requests to an agent and of a stager's error output.
_POLL_SECONDS, _REQUEST_SECONDS, _ERRORS_SECONDS = 0.25, 60.0, 1.0
#: The arguments of a Python interpreter that run the stager.
_PROGRAM = ("-P", "-m", "distdl_jupyter.data.stager")
#: The maximum number of characters of a part of a message to an agent.
_MAX_MESSAGE_CHARS = 1 << 20
#: The number of copied bytes between two progress messages.
_REPORT_BYTES = 1 << 23
#: The folders of the working directory and of the script in a job's folder on a host.
_WORK, _SCRIPT = "work", "script"
#: The code of the notice about a value that stays on its host, whose folder is then not removed.
_RESULT_LEFT = "result-left-on-host"
#: The maximum size in bytes of a rank's value; larger data belongs in the job's outputs.
MAX_VALUE_BYTES = 4 * 2**30
_VALUE_NAME = re.compile(r"rank-(0|[1-9]\d{0,8})\.pkl")
#: The folders that are copied back.
_RESULT_FOLDERS = ("results", "outputs")


class StagedJob(NamedTuple):
    """The job to copy to hosts."""

    spec: JobSpec
    folder: JobFolder
    options: Any


# copy to the hosts ----------------------------------------------------------------------------------------


def prepare(job: StagedJob, connections: Sequence[Connection]) -> list[AgentNode]:
    """Create the job's folder on every host. Raises HostFailed if the option ``shared`` is wrong."""
    directory, name, content = job.spec.working_directory, f"proof-{secrets.token_hex(16)}", secrets.token_hex(16)
    fields = {
        "job": job.spec.id,
        "folder": str(job.folder.path),
        "proof": [name, content] if job.options.shared is not False else None,
        "base": job.options.directory or DEFAULT_DIRECTORY,
        "working_directory": directory,
    }
    path = job.folder.path / name
    try:
        with contextlib.suppress(OSError):  # without the file, no host shares the folder
            path.touch(mode=0o600)
            path.write_text(content, encoding="utf-8")
        answers = query_or_raise([(connection, fields) for connection in connections], "prepare", _REQUEST_SECONDS)
    finally:
        path.unlink(missing_ok=True)
    nodes = []
    for connection, answer in zip(connections, answers, strict=True):
        folder, is_shared = str(answer["folder"]), bool(answer["shared"])
        has_directory = bool(answer.get("working_directory_there")) or not directory
        if job.options.shared and not is_shared:
            text = f"The host does not see the job's folder {job.folder.path}, although the option 'shared' is set."
            remedy = "Remove the option 'shared', or set DISTDL_HOME to a folder that all hosts mount."
            raise HostFailed(connection.host, text, remedy, code="shared-folder-missing")
        if is_shared and not has_directory:
            text = f"The host sees the job's folder, but not the working directory {directory}."
            remedy = "Submit from a folder that all hosts mount, or set the cluster option 'shared' to False."
            raise HostFailed(connection.host, text, remedy, code="working-directory-missing")
        working_directory = directory if has_directory else f"{folder}/{_WORK}"
        nodes.append(AgentNode(connection, folder, working_directory, str(answer["run"]), is_shared=is_shared))
    return nodes


def copy(job: StagedJob, node: AgentNode) -> None:
    """Copy a job's files and checkpoints to a host, with its paths in the payload. Raises HostFailed, LaunchFailed."""
    stream = io.BytesIO()
    try:
        payload = json.loads((job.folder.path / "payload.json").read_text(encoding="utf-8"))
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:

            def add(name: str, content: bytes, type_: bytes = tarfile.REGTYPE) -> None:
                entry = tarfile.TarInfo(name)
                entry.type, entry.size = type_, len(content)
                archive.addfile(entry, io.BytesIO(content))

            if payload.get("script"):
                script = Path(payload["script"])
                payload["script"] = f"{node.folder}/{_SCRIPT}/{script.name}"
                add(f"{_SCRIPT}/{script.name}", script.read_bytes())
            if payload.get("working_directory"):
                payload["working_directory"] = node.directory
            add("payload.json", json.dumps(payload).encode())
            add(_WORK, b"", tarfile.DIRTYPE)
        paths = ("code", "payload.pkl", "outputs/checkpoints")  # ranks resume from the checkpoints
        send(node.connection, "put", lambda write: files.pack(job.folder.path, paths, write))
        send(node.connection, "put", lambda write: write(stream.getvalue()))
    except OSError as error:
        text = f"Cannot read the job's files to copy them to {node.host}: {error}."
        hint = "Check the permissions of the job's folder, and submit the job again."
        raise LaunchFailed(text, code="job-files-unreadable", hint=hint) from error


def send(
    connection: Connection, type_: str, produce: Callable[[Callable[[bytes], object]], object], **fields: Any
) -> dict[str, Any]:
    """Send a request with a tar archive, which ``produce`` writes; return the answer. Raises HostFailed."""
    channel = connection.open_channel(lambda _content: None)
    answer = connection.begin(type_, channel=channel, **fields)
    produce(lambda content: connection.write(channel, content) if content else None)
    connection.write(channel, b"")
    return connection.result(answer, type_, math.inf)


# copy back from the hosts ------------------------------------------------------------------------------------


def copy_back(job: StagedJob, node: AgentNode, copied_paths: set[Path], ranks: Collection[int]) -> list[RunNotice]:
    """Copy the files of ranks from a host into the job's folder; return notices. Raises HostFailed, LaunchFailed.

    Only the values of ``ranks``, the ranks of this host, are accepted, so that no host can forge values of other hosts.
    ``copied_paths`` are the files of other hosts. On a name conflict, the file is stored in a subfolder named after the
    host, except for checkpoints, where the first file is kept.
    """
    notices = list[RunNotice]()

    def accepts(name: str, bytes_: int) -> bool:
        path = PurePosixPath(name)
        if path.parts[0] != "results":
            return True
        reason = explain_refusal(path.relative_to("results"), bytes_, ranks)
        if reason and not path.name.startswith("."):  # hidden files are incomplete files of a killed rank
            text = f"{node.host}: {reason}. The file was not copied; it is in {node.folder}."
            notices.append(RunNotice("warning", text, _RESULT_LEFT))
        return not reason

    try:
        with tempfile.TemporaryDirectory(prefix=".from-", dir=job.folder.path, ignore_cleanup_errors=True) as folder:
            _summary, answer = _unpack(node, _RESULT_FOLDERS, Path(folder), accepts)
            if skipped := [str(name) for name in answer.get("skipped") or ()]:
                names = ", ".join(skipped[:3]) + (" ..." if len(skipped) > 3 else "")
                text = f"{node.host}: {names} not copied back, because only regular files are copied."
                notices.append(RunNotice("warning", text, "files-left-on-host"))
            for name in _RESULT_FOLDERS:  # any other file of the archive is ignored
                for path in sorted(path for path in Path(folder, name).rglob("*") if path.is_file()):
                    relative_path = path.relative_to(Path(folder, name))
                    notices += _store(path, job.folder.path / name, relative_path, node.host, copied_paths)
    except OSError as error:
        text = f"Cannot store the files of {node.host} in {job.folder.path}: {error}."
        hint = "Free disk space, or check the permissions of that folder."
        raise LaunchFailed(text, code="job-files-not-stored", hint=hint) from error
    return notices


def _unpack(
    node: AgentNode, paths: Sequence[str], target: Path, accepts: Callable[[str, int], bool]
) -> tuple[files.TransferSummary, dict[str, Any]]:
    """Copy the files below ``paths`` that ``accepts`` allows; return their summary and the agent's answer."""
    channel, stream = node.connection.open_stream()
    answer = node.connection.begin("get", channel=channel, paths=list(paths))
    try:
        summary = files.receive_files(target, stream, accepts)
    except files.TransferRefused as error:
        node.connection.result(answer, "get", _REQUEST_SECONDS)  # raises the actual error if the host is lost
        text = f"The host sent an invalid archive. {error}"
        raise HostFailed(node.host, text, code="host-archive-invalid") from error
    return summary, node.connection.result(answer, "get", _REQUEST_SECONDS)


def fetch(folder: JobFolder, node: AgentNode, path: str, max_bytes: int) -> None:
    """Copy one file of at most ``max_bytes`` bytes from a host while the job runs. Raises HostFailed, OSError."""
    summary, _answer = _unpack(node, [path], folder.path, lambda name, bytes_: name == path and bytes_ <= max_bytes)
    if not summary.files:
        text = f"The host has no file {path} of at most {max_bytes} bytes."
        raise HostFailed(node.host, text, code="host-file-missing")


def _store(path: Path, folder: Path, name: Path, host: str, copied_paths: set[Path]) -> list[RunNotice]:
    """Move a file of a host to ``name`` in a folder; return a notice if it got another name."""
    target, notices = folder / name, list[RunNotice]()
    is_same = target.exists() and filecmp.cmp(path, target, shallow=False)
    # Of checkpoints, keep the file of the first host, or the file that all hosts started with.
    if name.parts[0] != "checkpoints" or not (is_same or target in copied_paths):
        if target in copied_paths and not is_same:
            target = folder / host / name
            text = f"Several hosts wrote {name}. The file of {host} was saved as {target.relative_to(folder)}."
            notices.append(RunNotice("warning", text, "file-of-several-hosts"))
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.replace(target)
    copied_paths.add(target)
    return notices


def remove_stale_checkpoints(folder: Path, copied_paths: Collection[Path]) -> None:
    """Remove checkpoints that training has deleted on all hosts, unless their folder is a link to another one."""
    for path in [] if folder.is_symlink() else list(folder.rglob("*")):
        if path.is_file() and path not in copied_paths:
            path.unlink(missing_ok=True)


def explain_refusal(name: PurePath, bytes_: int, ranks: Collection[int]) -> str:
    """Return the reason to refuse a file of ``results``, or "". ``ranks`` are the ranks that ran on the host."""
    match = _VALUE_NAME.fullmatch(str(name))
    if match is None:
        return f"results/{name} is not the value of a rank"
    if int(match[1]) not in ranks:
        return f"results/{name} is the value of a rank that did not run on this host"
    problem = f"{humanize.size(bytes_)}, but the limit for a value is {humanize.size(MAX_VALUE_BYTES)}"
    return f"results/{name} has {problem}; save it in outputs/ instead" if bytes_ > MAX_VALUE_BYTES else ""


# the hosts of a started job ---------------------------------------------------------------------


class AgentNodes(JobNodes):
    """Hosts with agents. ``handle`` is the data for a sweep, ``release`` frees the hosts."""

    def __init__(
        self,
        job: StagedJob,
        placement: Placement,
        context: Context,
        nodes: Sequence[AgentNode],
        handle: Mapping[str, Any] = MappingProxyType({}),
        release: Callable[[], object] = bool,
    ) -> None:
        super().__init__(nodes)
        self._handle = handle
        self._release = release
        self._job = job
        self._placement = placement
        self._context = context
        #: The hosts whose files were not copied back, so that their folders are not removed.
        self._uncollected_hosts: set[str] = set()

    def get_environment(self, node: AgentNode) -> dict[str, str]:
        """Return the variables of all processes on a host, which extend its login environment."""
        inherited = environment.select_for_remote_ranks(self._context.inherited)
        return {**inherited, **self._context.variables, "DISTDL_JOB_DIR": node.folder}

    def get_rank_variables(self, slot: RankSlot, variables: dict[str, str]) -> dict[str, str]:
        """Add the paths of the rank's folder and data on its host."""
        node = self.get_node(slot)
        return variables | {"DISTDL_JOB_DIR": node.folder} | node.data_variables

    def collect(self) -> None:
        """Copy back the files of ranks from hosts that do not share the folder, one host after the other."""
        unshared, failures, copied_paths = [node for node in self.nodes if not node.is_shared], list[str](), set[Path]()
        if len(unshared) < len(self.nodes):  # the files that hosts have written into the shared folder
            for name in _RESULT_FOLDERS:
                copied_paths.update(path for path in (self._job.folder.path / name).rglob("*") if path.is_file())
        for node in unshared:
            try:
                # Compare names, because the list of nodes does not contain lost hosts.
                host_ranks = [slot.rank for slot in self._placement.ranks if slot.host == node.host]
                notices = copy_back(self._job, node, copied_paths, host_ranks)
                self.notices += notices
                if any(notice.code == _RESULT_LEFT for notice in notices):
                    self._uncollected_hosts.add(node.host)
            except DistDLError as error:
                self._uncollected_hosts.add(node.host)
                failures.append(f"{node.host} ({node.folder}): {getattr(error, 'reason', error.message)}")
        if not failures and len(unshared) == len(self.nodes):
            remove_stale_checkpoints(self._job.folder.checkpoints, copied_paths)
        if failures:
            text = f"Cannot copy the values and files of {plural(len(failures), 'host')} back: {' '.join(failures)}"
            hint = "The files that ranks wrote stay in that folder on the host. Copy them from there."
            raise LaunchFailed(text, code="results-not-collected", hint=hint)

    def handle(self) -> dict[str, Any]:
        """Return the data for a sweep."""
        return dict(self._handle)

    def close(self) -> None:
        """End the agents and release the hosts."""
        end_all([node.connection for node in self.nodes], keep=self._uncollected_hosts)
        self._release()


#: A message of a stager (see ``data.stager``).
Message = dict[str, Any]


class Stager:
    """A stager, which an agent runs and ends with the job.

    ``folders`` are copied to its host first; ``variables`` are added to the environment of the agent's processes.
    """

    def __init__(
        self, number: int, host: str, connection: Any, base: str, folders: Mapping[str, _Folder],
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.number = number
        self.host = host
        #: A ``Connection`` to another machine, or the agent in this process.
        self.connection = connection
        self.base = base
        self._folders = folders
        self._has_ended = False
        self._output, self._errors = Inbox(), Inbox()
        process = {"kind": DATA, "process": number, "argv": ["{python}", *_PROGRAM], "open_input": True}
        process |= {"out": connection.open_channel(self._output.feed), "environment": dict(variables)}
        process["err"] = connection.open_channel(self._errors.feed)
        connection.ask("start", _REQUEST_SECONDS, processes=[process])

    def write(self, message: Message) -> None:
        """Send a message in small parts, so that other messages on the connection are not delayed."""
        text = json.dumps(message) + "\n"
        with contextlib.suppress(HostFailed):
            for start in range(0, len(text), _MAX_MESSAGE_CHARS):
                part = text[start : start + _MAX_MESSAGE_CHARS]
                self.connection.ask("feed", _REQUEST_SECONDS, kind=DATA, process=self.number, text=part)

    def read_lines(self) -> Iterator[bytes]:
        """Yield the lines of its output."""
        unread = b""
        while content := self._output.take(Inbox.MAX_UNREAD, None):
            *lines, unread = (unread + content).split(b"\n")
            yield from lines

    def end(self) -> None:
        """Stop copying and reading."""
        self._has_ended = True
        self._output.close()

    def make_error(self, description: str) -> DataUnavailable:
        """Return the error for a stager that has ended without a result."""
        if self.connection.lost:
            text = f"The connection to {self.host} was lost while copying {description}: {self.connection.lost}"
            return DataUnavailable(text, code="stager-host-lost")
        errors = self._errors.take(Inbox.MAX_UNREAD, _ERRORS_SECONDS) or b""
        cause = ": ".join(["", *errors.decode(errors="replace").strip().splitlines()[-1:]])
        text = f"{self.host}: the program that copies {description} ended without a message{cause}."
        return DataUnavailable(text, code="stager-ended", hint="Submit the job again. Files already copied are kept.")

    def copy_folders(self, put: Callable[[Message], object]) -> dict[str, Message]:
        """Copy folders that the host lacks; return the path of each copy that is not at the same path."""
        changes = {}
        for name, folder in self._folders.items():
            path = str(folder.path)
            try:
                reply = self.connection.ask("fingerprint", _REQUEST_SECONDS, path=path)
                if reply["fingerprint"] != fingerprint(path):
                    changes[name] = {"path": self._copy(name, folder, put), "fingerprint": None}
            except OSError as error:
                text = f"Cannot read {path} to copy it to {self.host}: {error}."
                hint = "Check the path and its permissions."
                raise DataUnavailable(text, code="data-copy-unreadable", hint=hint) from None
        return changes

    def _copy(self, name: str, folder: _Folder, put: Callable[[Message], object]) -> str:
        """Copy a folder, unless the host has its content in its cache; return the path there."""
        path, connection, copied_bytes = folder.path, self.connection, 0

        def report(bytes_: int, file_count: int, cached_bytes: int = 0) -> None:
            counts = {"done": bytes_, "total": folder.total_bytes, "files": file_count, "of": folder.file_count}
            put({"type": "progress", "source": name, **counts, "cached": cached_bytes})

        def produce(write: Callable[[bytes], object]) -> None:
            def write_part(content: bytes) -> None:
                nonlocal copied_bytes
                if self._has_ended:
                    raise DataUnavailable("The copy was stopped.", code="data-copy-stopped")
                write(content)
                copied_bytes += len(content)
                if copied_bytes % _REPORT_BYTES < len(content):
                    report(min(copied_bytes, folder.total_bytes), 0)

            files.pack(path.parent, [path.name], write_part)

        fields = {"digest": folder.digest, "base": self.base}
        cached_copy = connection.ask("find_copy", _REQUEST_SECONDS, **fields)["path"]
        directory = cached_copy or send(connection, "copy", produce, **fields)["path"]
        report(folder.total_bytes, folder.file_count, folder.total_bytes if cached_copy else 0)
        return f"{directory}/{path.name}"


_MessageQueue = queue.SimpleQueue[tuple[Stager, Any]]


def _serve(stager: Stager, staging: JobStaging, received: _MessageQueue) -> None:
    """Send a stager its request and new signatures; queue its other messages, then None or the exception."""
    try:
        changes = stager.copy_folders(lambda message: received.put((stager, message)))
        request = staging.build_request(stager.number, base=stager.base)
        stager.write({**request, "sources": [{**item, **changes.get(item["name"], {})} for item in request["sources"]]})
        for line in stager.read_lines():
            with contextlib.suppress(json.JSONDecodeError, UnicodeDecodeError):  # output of a library
                message = json.loads(line)
                if not isinstance(message, dict) or message.get("type") != "renew":
                    received.put((stager, message))
                elif answer := staging.handle_message(stager.number, stager.host, message):  # may take seconds
                    stager.write(answer)
        received.put((stager, None))
    except BaseException as error:  # noqa: BLE001  raised by ``run_stagers``
        received.put((stager, error))


def run_stagers(
    start: Callable[[int], Stager], nodes: Sequence[int], staging: JobStaging, report: Callable[[str, str], object]
) -> dict[int, NodeData]:
    """Run the stagers that ``start`` starts on ``nodes`` to completion; return the result of each node.

    An exception from ``start`` or ``report`` and the first failure (DataUnavailable) end all stagers.
    """
    stagers, staged = list[Stager](), dict[int, NodeData]()
    received: _MessageQueue = queue.SimpleQueue()
    try:
        for node in nodes:
            stagers.append(stager := start(node))
            threading.Thread(target=_serve, args=(stager, staging, received), name="staging", daemon=True).start()
        pending = set(stagers)
        while pending:
            report("stage", f"copying {staging.content} to {plural(len(stagers), 'node')}")
            with contextlib.suppress(queue.Empty):
                stager, message = received.get(timeout=_POLL_SECONDS)
                if isinstance(message, BaseException):
                    raise message
                if message is None:
                    pending.remove(stager)
                    if stager.number not in staged:
                        raise stager.make_error(staging.content)
                elif isinstance(message, dict):
                    staging.handle_message(stager.number, stager.host, message)
                    if message.get("type") == "staged":
                        variables = {str(name): str(path) for name, path in message["paths"].items()}
                        staged[stager.number] = variables, str(message.get("python") or "")
    finally:
        for stager in stagers:
            stager.end()
    return staged


# data on hosts --------------------------------------------------------------------------------------


def stage_on_hosts(spec: JobSpec, nodes: Sequence[AgentNode], base: str, context: Context) -> None:
    """Copy a job's data to its hosts and set the variables of each node. Raises DataUnavailable, HostFailed."""
    assert context.staging is not None, "a job without data needs no staging"
    for path in [source.path for source in spec.data if source.scheme == "shared"]:
        requests = [(node.connection, {"path": path}) for node in nodes]
        answers = query_or_raise(requests, "fingerprint", _REQUEST_SECONDS)
        fingerprints = [(node.host, answer["fingerprint"]) for node, answer in zip(nodes, answers, strict=True)]
        # Stagers report a path that is missing.
        hosts = {str(fingerprint): host for host, fingerprint in fingerprints if fingerprint is not None}
        if len(hosts) > 1:
            first_host, host, *_other_hosts = sorted(hosts.values())
            text = f"{path} on {host} differs from {path} on {first_host}."
            hint = "Use a path on a file system that all nodes share, or upload the data to Azure Blob storage."
            raise DataUnavailable(text, code="data-differs-between-hosts", hint=hint)
    folders = {source.name: _Folder(source.path) for source in spec.data if source.scheme == "path"}

    def start(number: int) -> Stager:
        return Stager(number, nodes[number].host, nodes[number].connection, base, folders)

    staged = run_stagers(start, range(len(nodes)), context.staging, context.report)
    for number, node in enumerate(nodes):
        node.data_variables, node.python = staged[number]


class _Folder:
    """A folder or file of this machine to copy to hosts."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        #: Set by ``digest``.
        self.total_bytes = self.file_count = 0

    @functools.cached_property
    def digest(self) -> str:
        """The digest of the paths, sizes and ctimes (which no program can set) of all files. Raises OSError."""
        paths = sorted(path for path in self.path.rglob("*") if path.is_file()) if self.path.is_dir() else [self.path]
        statuses = [path.stat() for path in paths]
        self.total_bytes, self.file_count = sum(status.st_size for status in statuses), len(paths)
        lines = [f"{p.absolute()}\0{s.st_size}\0{s.st_ctime_ns}" for p, s in zip(paths, statuses, strict=True)]
        return hashlib.blake2b("\n".join(lines).encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()
