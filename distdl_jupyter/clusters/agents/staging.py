"""Brings a job to hosts and its results back, where they do not see the job's own folder.

A host shares that folder when it finds there what this machine has just written. Otherwise it gets a folder of its
own: the payload with its paths put right, the modules beside the notebook, the script. What ranks leave in
``results`` and ``outputs`` comes back at the end.
"""

from __future__ import annotations

import contextlib
import filecmp
import io
import json
import re
import secrets
import shutil
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.agents.agent import HostFailed, Node, Nodes, ask_all_or_raise
from distdl_jupyter.clusters.agents.connection import DIRECTORY, Connection, end_all
from distdl_jupyter.clusters.base import Context, Notice
from distdl_jupyter.core import humanize
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.core.plan import Placement, RankSlot
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import files

#: Seconds for a folder on a slow disk.
_PREPARE_SECONDS = 30.0
#: Names in a job's folder on a host.
_WORK, _SCRIPT = "work", "script"
RESULTS = "results"
_RETURNED = (RESULTS, "outputs")
#: What ranks go on from; it lies on every host when they begin.
_CHECKPOINTS = "outputs/checkpoints"


@dataclass(slots=True, eq=False)
class AgentNode(Node):
    """One host of a job. ``shared`` when it sees the job's own folder.

    ``work_is_empty`` when the job's working directory is not there, so that ranks begin in an empty folder.
    """

    connection: Connection
    shared: bool
    work_is_empty: bool = False
    #: The variables that tell ranks where their data is.
    data: dict[str, str] = field(default_factory=dict)
    #: What came back and what did not, for the user.
    notices: list[Notice] = field(default_factory=list)
    #: Whether values were left there, so that the folder stays.
    keeps_folder: bool = False


class Job(NamedTuple):
    """What is copied to hosts."""

    spec: JobSpec
    folder: JobFolder
    options: Any


# there ---------------------------------------------------------------------------------------------


def prepare(job: Job, connections: Sequence[Connection]) -> list[AgentNode]:
    """Give every host its folder. Raises LaunchFailed, also when a host was to share and does not."""
    with _proof(job) as proof:
        fields = {
            "job": job.spec.id,
            "folder": str(job.folder.path),
            "proof": proof,
            "base": job.options.directory or DIRECTORY,
            "working_directory": job.spec.working_directory,
        }
        answers = ask_all_or_raise([(connection, fields) for connection in connections], "prepare", _PREPARE_SECONDS)
    return [_agent_node(job, connection, answer) for connection, answer in zip(connections, answers, strict=True)]


@contextlib.contextmanager
def _proof(job: Job) -> Iterator[list[str] | None]:
    """Write a text into the job's folder that nobody can guess; None when hosts are said to share nothing."""
    if job.options.shared is False:
        yield None
        return
    path, text = job.folder.path / f"proof-{secrets.token_hex(8)}", secrets.token_hex(16)
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    try:
        yield [path.name, text]
    finally:
        path.unlink(missing_ok=True)


def _agent_node(job: Job, connection: Connection, answer: dict[str, Any]) -> AgentNode:
    folder, shared, working_directory = str(answer["folder"]), bool(answer["shared"]), job.spec.working_directory
    there = bool(answer.get("working_directory_there")) or not working_directory
    if job.options.shared and not shared:
        raise HostFailed(
            connection.host,
            f"The host does not see the job's folder {job.folder.path}, although the option shared is set.",
            "Remove the option shared, or set DISTDL_HOME to a folder that all hosts mount.",
            code="shared-folder-missing",
        )
    if shared and not there:
        raise HostFailed(
            connection.host,
            f"The host sees the job's folder, but not the working directory {working_directory}.",
            "Submit from a folder that all hosts mount, or set the cluster option shared to False.",
            code="working-directory-missing",
        )
    directory = working_directory if there else f"{folder}/{_WORK}"
    return AgentNode(connection, folder, directory, str(answer["run"]), shared=shared, work_is_empty=not there)


def copy(job: Job, node: AgentNode) -> None:
    """Bring the job's files, and its checkpoints, to a host that does not see them. Raises HostFailed."""
    _put(node, lambda write: files.pack(job.folder.path, ("code", "payload.pkl", _CHECKPOINTS), write))
    _put(node, lambda write: _pack_rest(job, node, write))


def size(job: Job) -> int:
    """Return the bytes that are copied to each host."""
    folders = (job.folder.code, job.folder.checkpoints)
    paths = [job.folder.payload, *(path for folder in folders for path in folder.rglob("*") if path.is_file())]
    return sum(path.stat().st_size for path in paths if path.exists())


def send(
    connection: Connection, type_: str, produce: Callable[[Callable[[bytes], object]], object], **fields: Any
) -> dict[str, Any]:
    """Send a request that takes a tar, which ``produce`` writes; return the answer. Raises HostFailed."""
    channel = connection.channel(lambda _content: None)
    answer = connection.begin(type_, channel=channel, **fields)
    produce(lambda content: connection.write(channel, content) if content else None)
    connection.write(channel, b"")
    return connection.result(answer, type_, None)


def _put(node: AgentNode, produce: Callable[[Callable[[bytes], object]], object]) -> None:
    try:
        send(node.connection, "put", produce)
    except OSError as error:
        raise LaunchFailed(
            f"Cannot read the job's files to copy them to {node.host}: {error}.",
            code="job-files-unreadable",
            hint="Check the permissions of the job's folder, and submit the job again.",
        ) from error


def _pack_rest(job: Job, node: AgentNode, write: Callable[[bytes], object]) -> None:
    """Write the payload's description with the paths of the host, the script, and an empty folder to work in."""
    payload = json.loads((job.folder.path / "payload.json").read_text(encoding="utf-8"))
    script = Path(payload["script"]) if payload.get("script") else None
    if script is not None:
        payload["script"] = f"{node.folder}/{_SCRIPT}/{script.name}"
    if payload.get("working_directory"):
        payload["working_directory"] = node.directory
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "payload.json", json.dumps(payload).encode())
        if script is not None:
            _add(archive, f"{_SCRIPT}/{script.name}", script.read_bytes())
        folder = tarfile.TarInfo(_WORK)
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    write(stream.getvalue())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


# back ----------------------------------------------------------------------------------------------


def copy_back(job: Job, node: AgentNode, copied: set[Path], ranks: Collection[int]) -> None:
    """Put what ranks wrote on a host into the job's folder. Raises HostFailed, LaunchFailed.

    Of values only those of ``ranks`` are taken, which are the host's own: whoever holds it decides what they are.
    ``copied`` are the files that other hosts have copied, or have written here themselves, to which this one's are
    added. One that came under the same name is kept beside it in a folder with this host's name, unless it is a
    checkpoint: there the first counts. What an earlier attempt has left under the same name is replaced.
    """
    arrived = job.folder.path / f".from-{node.host}"
    shutil.rmtree(arrived, ignore_errors=True)
    arrived.mkdir(mode=0o700)
    try:
        _get(node, arrived, ranks)
        for name in _RETURNED:
            for path in sorted(path for path in (arrived / name).rglob("*") if path.is_file()):
                _store(path, job.folder.path / name, path.relative_to(arrived / name), node, copied)
    except OSError as error:
        raise LaunchFailed(
            f"Cannot store the files of {node.host} in {job.folder.path}: {error}.",
            code="job-files-not-stored",
            hint="Free disk space, or check the permissions of that folder.",
        ) from error
    finally:
        shutil.rmtree(arrived, ignore_errors=True)


def existing_files(job: Job) -> set[Path]:
    """Return the files that hosts which see the job's folder have written there; earlier attempts' are among them."""
    return {path for name in _RETURNED for path in (job.folder.path / name).rglob("*") if path.is_file()}


def _get(node: AgentNode, target: Path, ranks: Collection[int]) -> None:
    def accepts(name: str, bytes_: int) -> bool:
        path = PurePosixPath(name)
        if path.parts[0] != RESULTS:
            return True
        why = result_refusal(path.relative_to(RESULTS), bytes_, ranks)
        if why and not path.name.startswith("."):  # such are halves of files that a killed rank has left
            text = f"{node.host}: {why}. The file was not copied; it is in {node.folder}."
            node.notices.append(Notice("warning", text, "result-left-on-host"))
            node.keeps_folder = True
        return not why

    _moved, result = _unpack(node, _RETURNED, target, accepts)
    if skipped := [str(name) for name in result.get("skipped") or ()]:
        shown = ", ".join(skipped[:3]) + (" ..." if len(skipped) > 3 else "")
        text = f"{node.host}: {shown} not copied back, because only regular files inside the job's folder are copied."
        node.notices.append(Notice("warning", text, "files-left-on-host"))


def _unpack(
    node: AgentNode, paths: Sequence[str], target: Path, accepts: Callable[[str, int], bool]
) -> tuple[files.Moved, dict[str, Any]]:
    """Copy the files below ``paths`` that ``accepts`` allows; return what was written, and the agent's answer."""
    channel, stream = node.connection.open_stream()
    answer = node.connection.begin("get", channel=channel, paths=list(paths))
    try:
        with contextlib.closing(stream):
            moved = files.unpack(target, stream, accepts)
            while stream.read(1 << 16):  # a tar may be padded behind its end
                pass
    except (tarfile.TarError, files.Refused) as error:
        node.connection.result(answer, "get", _PREPARE_SECONDS)  # a host that is lost says so itself
        raise HostFailed(
            node.host, f"The host sent an invalid archive: {error}.", code="host-archive-invalid"
        ) from error
    return moved, node.connection.result(answer, "get", _PREPARE_SECONDS)


def fetch(folder: JobFolder, node: AgentNode, path: str, most: int) -> None:
    """Put one file of a host, of at most ``most`` bytes, into the job's folder while the job runs.

    Raises HostFailed, OSError.
    """
    moved, _result = _unpack(node, [path], folder.path, lambda name, bytes_: name == path and bytes_ <= most)
    if not moved.files:
        raise HostFailed(node.host, f"The host has no file {path} of at most {most} bytes.", code="host-file-missing")


def _store(path: Path, folder: Path, name: Path, node: AgentNode, copied: set[Path]) -> None:
    target = folder / name
    same = target.exists() and filecmp.cmp(path, target, shallow=False)
    if name.parts[0] == "checkpoints" and (same or target in copied):
        copied.add(target)
        return  # the first host's, or what was laid out there for all
    if target in copied and not same:
        target = folder / node.host / name
        text = f"Several hosts wrote {name}. The file of {node.host} was saved as {target.relative_to(folder)}."
        node.notices.append(Notice("warning", text, "file-of-several-hosts"))
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.replace(target)
    copied.add(target)


def remove_stale_checkpoints(job: Job, copied: Collection[Path]) -> None:
    """Remove the checkpoints that were there before and that no host has any more: training keeps only some.

    Where training has put a link in the folder's place, what lies behind it is not the job's.
    """
    if job.folder.checkpoints.is_symlink():
        return
    for path in [path for path in job.folder.checkpoints.rglob("*") if path.is_file() and path not in copied]:
        path.unlink(missing_ok=True)


# the hosts of a started job ---------------------------------------------------------------------


class AgentNodes(Nodes[AgentNode]):
    """Hosts with an agent on each: ``handle`` finds what is left of the job there, ``release`` gives the hosts back."""

    def __init__(
        self,
        job: Job,
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
        self._uncollected: set[str] = set()

    def environment(self, node: AgentNode) -> dict[str, str]:
        """Return what every process of the job has on a host, over the login environment there."""
        inherited = environment.for_ranks(self._context.inherited)
        return {**inherited, **self._context.own, "DISTDL_JOB_DIR": node.folder}

    def rank_variables(self, slot: RankSlot, variables: dict[str, str]) -> dict[str, str]:
        """Add the rank's folder and data on its host."""
        node = self.node_of(slot)
        return variables | {"DISTDL_JOB_DIR": node.folder} | node.data

    def collect(self) -> None:
        """Bring back what ranks wrote on hosts with folders of their own, one host after the other."""
        apart, missing = [node for node in self.nodes if not node.shared], list[str]()
        copied = existing_files(self._job) if len(apart) < len(self.nodes) else set()
        for node in apart:
            try:
                # By the name, because of hosts that were lost the list of nodes has none.
                ranks_here = [slot.rank for slot in self._placement.ranks if slot.host == node.host]
                copy_back(self._job, node, copied, ranks_here)
            except DistDLError as error:
                self._uncollected.add(node.host)
                missing.append(f"{node.host} ({node.folder}): {getattr(error, 'says', error.message)}")
        if not missing and len(apart) == len(self.nodes):
            remove_stale_checkpoints(self._job, copied)
        self._uncollected |= {node.host for node in self.nodes if node.keeps_folder}
        for node in self.nodes:
            self.notices += node.notices
        if missing:
            raise LaunchFailed(
                f"Cannot copy the values and files of {humanize.plural(len(missing), 'host')} back: "
                f"{' '.join(missing)}",
                code="results-not-collected",
                hint="The files that ranks wrote stay in that folder on the host. Copy them from there.",
            )

    def handle(self) -> dict[str, Any]:
        """Return what a sweep needs."""
        return dict(self._handle)

    def close(self) -> None:
        """End the agents and give the hosts back."""
        end_all([node.connection for node in self.nodes], keep=self._uncollected)
        self._release()


# which values are taken from other machines -------------------------------------------------------


#: Bytes that the value of one rank may have; what is larger belongs into the job's outputs.
LARGEST = 4 * 2**30
_VALUE = re.compile(r"rank-(0|[1-9]\d{0,8})\.pkl")


def result_refusal(name: PurePath, bytes_: int, ranks: Collection[int]) -> str:
    """Return why a file of the folder ``results`` is not taken, "" when it is; ``ranks`` are those that ran there."""
    match = _VALUE.fullmatch(str(name))
    if match is None:
        return f"results/{name} is not the value of a rank"
    if int(match[1]) not in ranks:
        return f"results/{name} is the value of a rank that did not run on this host"
    if bytes_ > LARGEST:
        return (
            f"results/{name} has {humanize.size(bytes_)}, but the limit for a value is {humanize.size(LARGEST)}; save "
            "it in outputs/ instead"
        )
    return ""
