"""What a Batch AI job runs: one of its nine kinds of settings, as script, arguments, backend and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distdl_jupyter.compat.batchai.commandline import take_apart, words
from distdl_jupyter.core.errors import InvalidSpec

#: Backends by PyTorch's communicationBackend.
_TORCH = {"nccl": "torch-nccl", "gloo": "torch-gloo", "tcp": "torch-gloo"}
_PLAIN = "plain"
#: What started the command line of these settings on its own.
_STARTERS = {"customMpiSettings": "mpirun"}
Texts = Callable[[str], str | None]
#: Which backend fits an MPI program is seen in its script.
BY_SCRIPT = ""


@dataclass(slots=True)
class Program:
    """``script`` is a path as the job wrote it; ``backend`` "" is found out from the script.

    ``processes`` is the total; ``notes`` pairs what was said with what became of it.
    """

    script: str
    arguments: tuple[str, ...] = ()
    backend: str = BY_SCRIPT
    processes: int = 1
    nodes: int = 1
    directory: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)


def program(toolkit: str, settings: Mapping[str, Any], nodes: int, text: Texts | None = None) -> Program:
    """Return what settings of a kind run on so many nodes; ``text`` gives the text of a shell script by its path.

    Raises InvalidSpec that says what to do instead.
    """
    if "commandLine" in settings:
        told = _command(settings, nodes, text, started_by=_STARTERS.get(toolkit, ""))
    else:
        told = _READERS[toolkit](settings, nodes)
    if told.processes < told.nodes:
        told.notes.append((f"{told.nodes} nodes", f"{told.processes} are enough for as many processes"))
        told.nodes = told.processes
    if told.processes % told.nodes:
        raise InvalidSpec(f"{told.processes} processes cannot be divided equally among {told.nodes} nodes.",
                          field="processCount", hint="Give node_count and process_count_per_node.")  # fmt: skip
    return told


def _script(settings: Mapping[str, Any], nodes: int, *, backend: str, processes: int | None = None) -> Program:
    path = settings.get("pythonScriptFilePath")
    if not path:
        raise InvalidSpec("These settings name no pythonScriptFilePath, so there is no Python to run.",
                          field="pythonScriptFilePath", hint="Name the script that trains.")  # fmt: skip
    told = Program(str(path), words(str(settings.get("commandLineArgs", ""))), backend,
                   processes or int(settings.get("processCount", nodes)), nodes)  # fmt: skip
    if interpreter := settings.get("pythonInterpreterPath"):
        told.notes.append((f"pythonInterpreterPath {interpreter}", "ignored: ranks run under this kernel's Python"))
    return told


def _horovod(settings: Mapping[str, Any], nodes: int) -> Program:
    return _script(settings, nodes, backend="horovod-gloo")


def _torch(settings: Mapping[str, Any], nodes: int) -> Program:
    wanted = str(settings.get("communicationBackend", "")).lower()
    told = _script(settings, nodes, backend=_TORCH.get(wanted, "torch"))
    told.variables["AZ_BATCHAI_PYTORCH_INIT_METHOD"] = "env://"
    if wanted == "mpi":
        told.notes.append(("communicationBackend mpi", "torch chooses Gloo or NCCL: pip's torch has no MPI"))
    return told


def _tensorflow(settings: Mapping[str, Any], nodes: int) -> Program:
    many = settings.get("workerCount", 1) > 1 or "parameterServerCommandLineArgs" in settings
    if many or (nodes > 1 and "workerCommandLineArgs" in settings):
        raise InvalidSpec("TensorFlow with parameter servers is not run here.", field="tensorFlowSettings",
                          hint="Let the script use MultiWorkerMirroredStrategy and submit it with distributed_backend="
                          "'tensorflow', or horovod.tensorflow and name it in horovodSettings.")  # fmt: skip
    alone = {**settings, "commandLineArgs": settings.get("masterCommandLineArgs", "")}
    return _script(alone, 1, backend=_PLAIN, processes=1)


def _mpi_script(settings: Mapping[str, Any], nodes: int) -> Program:
    if "configFilePath" in settings and "pythonScriptFilePath" not in settings:
        raise InvalidSpec("The job runs a configuration file of its framework, which is no Python.",
                          field="configFilePath", hint="Name a pythonScriptFilePath.")  # fmt: skip
    return _script(settings, nodes, backend=BY_SCRIPT)


def _one_each(settings: Mapping[str, Any], nodes: int) -> Program:
    """Batch AI ran Caffe2's script once on each node; the script lets them meet by itself."""
    return _script(settings, nodes, backend="torch" if nodes > 1 else _PLAIN, processes=nodes)


def _no_command(_settings: Mapping[str, Any], _nodes: int) -> Program:
    raise InvalidSpec("These settings have no commandLine.", field="commandLine", hint="Name the command that trains.")


def _command(settings: Mapping[str, Any], nodes: int, text: Texts | None, *, started_by: str) -> Program:
    told = take_apart(str(settings["commandLine"]), text)
    launcher = told.launcher or started_by
    found = Program(told.script, told.arguments, BY_SCRIPT if launcher else _PLAIN, nodes=nodes,
                    directory=told.directory, variables=told.variables)  # fmt: skip
    found.notes = [(said, f"left out: {why}") for said, why in told.left_out]
    if not launcher:
        # Batch AI ran such a command on the first node alone.
        found.nodes = 1
        return found
    found.processes = _count(told.processes, told.per_node, settings.get("processCount"), nodes)
    if told.launcher:
        found.notes.append((told.launcher, "left out: the backend starts the ranks"))
        if told.processes is None and told.per_node is None:
            found.notes.append((f"{told.launcher} without -np", "one process on each node; "
                                "process_count_per_node says otherwise"))  # fmt: skip
    return found


def _count(total: int | None, per_node: int | None, asked: Any, nodes: int) -> int:
    if total is not None:
        return total
    return per_node * nodes if per_node is not None else int(asked or nodes)


_READERS: dict[str, Callable[[Mapping[str, Any], int], Program]] = {
    "horovodSettings": _horovod,
    "pyTorchSettings": _torch,
    "tensorFlowSettings": _tensorflow,
    "customMpiSettings": _no_command,
    "customToolkitSettings": _no_command,
    "chainerSettings": _mpi_script,
    "cntkSettings": _mpi_script,
    "caffe2Settings": _one_each,
    "caffeSettings": _mpi_script,
}
