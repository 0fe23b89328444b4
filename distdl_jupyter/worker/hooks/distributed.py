"""Hooks for torch.distributed and Horovod: connecting and disconnecting ranks, stores, groups and last operations.

Only this module uses torch's private functions for process groups: ``_world.pg_map`` (torch has no public list of
groups), ``_get_default_store``, ``_get_sequence_number_for_group`` and the flight recorder's ``_dump_fr_trace`` and
``_dump_nccl_trace``. If a torch version does not have one of them, only the feature that uses it is unavailable.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from distdl_jupyter.worker import channel
from distdl_jupyter.worker.hooks.imports import HookFinder, Patches, call_hook, report_connect

_patch = Patches()


def install_hooks(finder: HookFinder) -> None:
    """Hook process groups, and select the rank's GPU once torch is imported."""
    finder.hook("torch.distributed.distributed_c10d", watch_groups)
    _patch.install(finder)
    for name in ("horovod.keras", "horovod.tensorflow.keras"):
        finder.check_before(name, functools.partial(refuse_keras_3, name))
    # As under torchrun, all GPUs of the node are visible, so ``torch.cuda.set_device(local_rank)`` works as usual. Code
    # that uses the device "cuda" without an index gets torch's current GPU, which is selected here.
    visible_gpus, gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","), os.environ.get("DISTDL_GPU", "")
    if gpu in visible_gpus[1:]:
        finder.hook("torch", functools.partial(_select_gpu, visible_gpus.index(gpu)))


def _select_gpu(index: int, torch: ModuleType) -> None:
    try:
        torch.cuda.set_device(index)
    except Exception as error:  # noqa: BLE001  a broken device must not make the import of torch fail
        text = f"GPU {index} could not be selected in torch ({error!s:.200}). Call torch.cuda.set_device."
        channel.notify("warning", text, "gpu-not-selected")


#: Timeout in seconds for the store to listen, and seconds between two attempts to connect. After the timeout torch
#: waits: rank 0 may be busy, or the store may be on another host.
STORE_SECONDS, _PAUSE_SECONDS = 5.0, 0.002
#: The most recently destroyed process groups (see ``watch_groups``).
_destroyed_groups: deque[Any] = deque(maxlen=16)
#: Whether torch's functions are replaced. A template replaces them for the ranks that are forked from it.
_is_watched = False
#: Whether an existing process group is reused and never destroyed, as for jobs in persistent ranks (``serving``), where
#: reconnecting takes time and can fail while a rank is still disconnecting.
is_reusing = False


def watch_groups(module: ModuleType | None = None) -> None:
    """Replace torch's functions that connect and disconnect ranks, if torch is loaded.

    A template calls this before it forks ranks, because reading a module writes to its memory (reference counts), so
    each rank would copy the memory of all modules.
    """
    global _is_watched
    c10d: Any = module or sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or _is_watched:
        return
    _is_watched = True
    initialize, destroy = c10d.init_process_group, c10d.destroy_process_group

    @functools.wraps(initialize)
    def connect(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        if is_reusing and c10d.is_initialized():
            return
        backend = backend or os.environ.get("DISTDL_TORCH_TRANSPORT") or None
        with report_connect(lambda: {"backend": f"torch-{_get_transport(c10d)}", "size": c10d.get_world_size()}):
            call_hook("before the ranks connected", watch_store)
            initialize(backend, *args, **kwargs)

    @functools.wraps(destroy)
    def disconnect(group: Any = None) -> None:
        # Delay the deletion of groups to avoid a deadlock: if a DistributedDataParallel model is deleted right after
        # the call, torch (2.13, Gloo) joins the group's threads while it holds the GIL, and one of the threads may wait
        # for the GIL. Older groups can be deleted, because they have no pending work.
        if group is not None or not is_reusing:
            call_hook("before the ranks disconnected", lambda: _destroyed_groups.extend(list_groups()))
            destroy(group)

    # Other modules import the functions by name. In a rank forked from a template, they have done so already.
    for importer in list(sys.modules.values()):
        for original, wrapper in ((initialize, connect), (destroy, disconnect)):
            names, name = getattr(importer, "__dict__", {}), str(original.__name__)
            if names.get(name) is original:
                names[name] = wrapper


def _get_transport(c10d: ModuleType) -> str:
    """Return the transport of the default group. A group created without a backend has one for each device type."""
    name = str(c10d.get_backend())
    if name != "undefined":
        return name
    by_device = dict(part.split(":", 1) for part in str(c10d.get_backend_config()).split(","))
    device = "cuda" if "cuda" in by_device and sys.modules["torch"].cuda.is_available() else "cpu"
    return by_device[device]


def watch_store() -> None:
    """Bind the store of this rank to its address if that is a loopback address, and wait for the store of another rank.

    torch (2.13) listens on every interface without authentication, but accepts a socket that already listens. If a
    rank connects a millisecond too early, torch retries only after half a second or more.
    """
    module: Any = sys.modules.get("torch.distributed.rendezvous")
    if module is None or hasattr(module.TCPStore, "__wrapped__"):
        return
    store_class = module.TCPStore

    @functools.wraps(store_class, updated=())
    def create_store(*args: Any, **kwargs: Any) -> Any:
        host, port = str(kwargs.get("host_name")), kwargs.get("port")
        is_local, deadline = host.startswith("127.") and isinstance(port, int), time.monotonic() + STORE_SECONDS
        if is_local and kwargs.get("is_master"):
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with contextlib.suppress(OSError):  # the port is in use, for example by this rank's earlier store
                    server.bind((host, port))
                    kwargs.setdefault("master_listen_fd", server.detach())
        elif is_local:
            while not _is_listening(host, port) and time.monotonic() < deadline:
                time.sleep(_PAUSE_SECONDS)
        return store_class(*args, **kwargs)

    module.TCPStore = create_store


def _is_listening(host: str, port: Any) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), _RESPONSE_SECONDS).close()
        return True
    return False


def get_distributed() -> Any:
    """Return ``torch.distributed`` if it has a process group, else None."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed if distributed and distributed.is_available() and distributed.is_initialized() else None


def list_groups() -> list[Any]:
    """Return torch's process groups."""
    distributed = get_distributed()
    return [] if distributed is None else list(distributed.distributed_c10d._world.pg_map)  # noqa: SLF001


def count_operations(group: Any) -> int | None:
    """Return the number of operations started in a group, or None if its transport does not count them."""
    try:
        return int(group._get_sequence_number_for_group())  # noqa: SLF001
    except (RuntimeError, AttributeError):
        return None


#: Timeout in seconds for the other ranks to end. By then all connections are established.
_END_SECONDS = 15.0
#: The same if the ranks have communicated in all groups, so that all connections are established already. A collective
#: operation in which another rank still waits for this rank fails when this rank exits.
_CONNECTED_END_SECONDS = 1.0
#: Timeout in seconds for rank 0 to wait until the others have left the store, and for a response of the store.
_LEAVE_SECONDS, _RESPONSE_SECONDS = 2.0, 2.0


def leave() -> None:
    """Disconnect from the other ranks, if the code has not done so."""
    for horovod in filter(None, map(sys.modules.get, _HOROVOD_MODULES)):
        if hasattr(horovod, "is_initialized") and call_hook("at the end", horovod.is_initialized):
            call_hook("at the end", horovod.shutdown)
    call_hook("at the end", _leave_group)


def _leave_group() -> None:
    """Destroy the process group, if there is one.

    If a rank closes its connections while a peer is still opening them, the peer fails. Therefore ranks wait for each
    other, and rank 0 leaves last, because it usually hosts the store through which ranks connect.
    """
    if (distributed := get_distributed()) is None:
        return
    rank, size = distributed.get_rank(), distributed.get_world_size()
    with contextlib.suppress(Exception):
        store = tcp_store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001
        while hasattr(tcp_store, "underlying_store"):
            tcp_store = tcp_store.underlying_store
        # A request to a store that no longer listens would print 20 lines of C++ errors.
        if rank == 0 or not hasattr(tcp_store, "port") or _is_listening(tcp_store.host, tcp_store.port):
            store.add("distdl/arrived", 1)
            is_connected = all((count_operations(group) or 0) > 0 for group in list_groups())
            timeout = _CONNECTED_END_SECONDS if is_connected else _END_SECONDS
            all_arrived = _wait_for_count(store, "distdl/arrived", size, timeout)
            if rank != 0:
                store.add("distdl/left", 1)
            elif all_arrived:
                _wait_for_count(store, "distdl/left", size - 1, _LEAVE_SECONDS)
    distributed.destroy_process_group()


def _wait_for_count(store: Any, counter: str, count: int, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not (is_reached := int(store.add(counter, 0)) >= count) and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_reached


#: Maximum number of process groups reported per rank, and of stack frames per operation.
_MAX_GROUPS, _MAX_FRAMES = 8, 24
#: Arguments of torch's dump: include collective operations, include stacks, include only active operations.
_DUMP_OPTIONS = (True, True, False)
#: The file whose frames call the user's code.
_ENTRY_FILE = str(Path(__file__).parents[1] / "payload.py")


def collect_operations() -> list[dict[str, Any]]:
    """Return the oldest unfinished operation of each process group, or else its last one.

    ``{"group", "operation", "number", "sizes", "dtype", "waiting", "last" (the number of the group's last operation),
    "frames" ([file, line, function], newest first)}``. Unfinished operations come first, newer ones before older ones.
    The list is empty without torch, a group or a recorder. torch 2.13 records Gloo and NCCL by default.
    """
    by_group: dict[str, list[dict[str, Any]]] = {}
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):  # torch stores the operations of NCCL separately
        entries: list[dict[str, Any]] = []
        with contextlib.suppress(Exception), _hide_inductor():  # a different build of torch, or no torch
            dump = getattr(sys.modules["torch._C._distributed_c10d"], name)
            entries = pickle.loads(dump(*_DUMP_OPTIONS)).get("entries") or []
        for entry in entries:
            with contextlib.suppress(LookupError, TypeError, ValueError):
                operation = _describe_operation(entry)
                by_group.setdefault(operation["group"], []).append(operation)
    latest = []
    for rows in by_group.values():
        rows.sort(key=lambda row: row["time"])
        latest.append({**next((row for row in rows if row["waiting"]), rows[-1]), "last": rows[-1]["number"]})
    latest.sort(key=lambda operation: (operation["waiting"], operation["time"]), reverse=True)
    return latest[:_MAX_GROUPS]


@contextlib.contextmanager
def _hide_inductor() -> Iterator[None]:
    """Prevent torch from importing its compiler, which takes seconds, in ``hasattr(torch, "_inductor")``."""
    torch, placeholder = vars(sys.modules["torch"]), ModuleType("torch._inductor")
    torch.setdefault("_inductor", placeholder)
    try:
        yield
    finally:
        if torch.get("_inductor") is placeholder:
            del torch["_inductor"]


def _describe_operation(entry: dict[str, Any]) -> dict[str, Any]:
    name, description = entry["process_group"]
    sizes = entry["input_sizes"] or entry["output_sizes"]
    frames = [[str(row["filename"]), int(row["line"]), str(row["name"])] for row in entry["frames"][:_MAX_FRAMES]]
    begin = next((index for index, frame in enumerate(frames) if frame[0] == _ENTRY_FILE), len(frames))
    return {
        "group": "default" if description == "default_pg" else str(name),
        "operation": str(entry["profiling_name"]).rpartition(":")[2],
        "number": int(entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]),
        "sizes": [list(map(int, size)) for size in sizes][:8],
        "dtype": str(next(iter(entry["input_dtypes"] or entry["output_dtypes"]), "")).lower(),
        "waiting": not (entry["retired"] or entry["state"] == "completed"),
        "time": int(entry["time_created_ns"]),
        "frames": frames[:begin],
    }


# Horovod -----------------------------------------------------------------------------------------
#
# Horovod with Keras 3 raises an error, because each rank would silently train a separate model (measured with Horovod
# 0.28.1: the ranks' weights differ after the first step).

_HOROVOD_MODULES = ("horovod.torch", "horovod.tensorflow", "horovod.mxnet")


@_patch("HorovodBasics.init", "horovod.common.basics")
def _init_horovod(init: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    with report_connect(lambda: {"backend": f"horovod-{'mpi' if self.mpi_enabled() else 'gloo'}", "size": self.size()}):
        return init(self, *args, **kwargs)


@_patch("shutdown", *_HOROVOD_MODULES)
def _shut_down_horovod(shutdown: Any, *args: Any, **kwargs: Any) -> None:
    if not is_reusing:
        shutdown(*args, **kwargs)


def get_running_horovod() -> Any:
    """Return ``horovod.torch`` if it is initialized, else None."""
    horovod: Any = sys.modules.get("horovod.torch")
    return horovod if horovod and horovod.is_initialized() else None


def refuse_keras_3(module: str) -> None:
    """Raise ImportError if ``import keras`` imports Keras 3."""
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError):
        loaded = sys.modules.get("keras")
        version = metadata.version("keras") if loaded is None else str(getattr(loaded, "__version__", ""))
        if (major := version.partition(".")[0]).isdigit() and int(major) >= 3:
            raise ImportError(
                f"{module} of Horovod 0.28 does not average gradients under Keras 3 ({version} is installed), so each "
                "rank would train its own model. Use import distdl_jupyter.compat.horovod.keras as hvd instead.",
                name=module,
            )
