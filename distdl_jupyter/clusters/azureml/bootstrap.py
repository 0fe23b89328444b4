"""Starts one rank of a job on Azure Machine Learning, which runs this program once for each process of the job.

``python launch.py [NAME=FOLDER ...]`` runs in the folder with the job's code. The first process on a node unpacks this
package, because the image may lack it. Azure's distribution sets the rendezvous variables: those of Open MPI (Mpi), of
torchrun (PyTorch) or ``TF_CONFIG`` (TensorFlow).

Azure keeps one log for each process. It contains the worker's stdout and stderr, with marks for the number of the rank,
each change between the two streams, and the exit of the rank.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

#: Placeholder in the plan for a rank's share of the node's cores.
CORES_PLACEHOLDER = "@cores@"
#: Placeholder in the payload for the folder with the job's code.
FOLDER_PLACEHOLDER = "@job@"
#: The folder below ``outputs`` for the values of ranks; Azure ML stores ``outputs``.
RESULTS_FOLDER = "distdl/results"
#: After a rank exits, its pipes are read until there is no output for this time, and at most for the second one.
_QUIET_SECONDS, _MAX_SECONDS = 0.3, 10.0


def build_mark(nonce: str, label: str) -> bytes:
    """Return a mark in the log of a rank; the nonce distinguishes it from the text of a program."""
    return f"\x1e{nonce}>{label}\x1f".encode()


def identify(environment: Mapping[str, str]) -> tuple[int, int, str]:
    """Return the rank, the number of processes and the local rank. The local rank is "" if unknown."""
    for prefix, size in (("OMPI_COMM_WORLD_", "OMPI_COMM_WORLD_SIZE"), ("", "WORLD_SIZE")):
        if f"{prefix}RANK" in environment:
            local_rank = environment.get(f"{prefix}LOCAL_RANK", "")
            return int(environment[f"{prefix}RANK"]), int(environment[size]), local_rank
    if "TF_CONFIG" in environment:
        config = json.loads(environment["TF_CONFIG"])
        return int(config["task"]["index"]), len(config["cluster"]["worker"]), ""
    return 0, 1, ""


def main() -> int:
    """Run this process's rank and return its exit code."""
    if sys.version_info < (3, 11):  # noqa: UP036  the image may contain an older Python
        sys.exit(
            "The image has Python {}.{}. Set the option 'environment' or 'python' for 3.11.".format(*sys.version_info)
        )
    folder = Path.cwd()
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    rank, processes, local_rank = identify(os.environ)
    if processes != plan["ranks"]:
        sys.exit(f"Azure ML set the number of processes to {processes}, but the job needs {plan['ranks']}.")
    _prepare_node(folder)
    sys.path.insert(0, str(folder / "lib"))
    cores = str(max(1, (os.cpu_count() or 1) // plan["per_node"]))
    variables = {name: value.replace(CORES_PLACEHOLDER, cores) for name, value in plan["environments"][rank].items()}
    if local_rank:
        variables |= {"LOCAL_RANK": local_rank, "DISTDL_LOCAL_RANK": local_rank}
    if devices := os.environ.get("CUDA_VISIBLE_DEVICES"):
        variables["CUDA_VISIBLE_DEVICES"] = devices
    python_path = os.pathsep.join(filter(None, (str(folder / "lib"), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": python_path, **plan["common"], **variables}
    environment |= {"DISTDL_JOB_DIR": str(folder), "DISTDL_HOST": os.uname().nodename}
    environment |= {plan["data"][name]: path for name, path in (item.split("=", 1) for item in sys.argv[1:])}
    nonce = plan["common"]["DISTDL_NONCE"]
    _write_log(build_mark(nonce, f"rank {rank}"))
    code, report = _run_worker(environment, nonce)
    _write_log(build_mark(nonce, f"end {json.dumps(report)}"))
    return code


def _prepare_node(folder: Path) -> None:
    """Unpack the package and lay out the job's folder, once on each node."""
    library, partial = folder / "lib", folder / "lib.partial"
    with (folder / "prepare.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.exists():
            return
        (folder / "outputs" / RESULTS_FOLDER).mkdir(parents=True, exist_ok=True)
        (folder / "work").mkdir(exist_ok=True)
        for link, target in (("results", f"outputs/{RESULTS_FOLDER}"), ("work/outputs", "../outputs")):
            with contextlib.suppress(FileExistsError):
                (folder / link).symlink_to(target)
        payload = folder / "payload.json"
        text = payload.read_text(encoding="utf-8").replace(f'"{FOLDER_PLACEHOLDER}/', f'"{folder}/')
        payload.write_text(text, encoding="utf-8")
        with zipfile.ZipFile(folder / "package.zip") as archive:
            archive.extractall(partial)
        partial.rename(library)


def _run_worker(environment: Mapping[str, str], nonce: str) -> tuple[int, dict[str, object]]:
    """Run the worker until it exits; return the exit code for Azure and the report about the exit."""
    from distdl_jupyter.node import devices, processes

    counters, stop_count = devices.count_oom_kills(), 0
    command, pipe = [sys.executable, "-P", "-m", "distdl_jupyter.worker"], subprocess.PIPE
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
    )

    def interrupt(*_: object) -> None:
        """Interrupt the rank if Azure cancels the job, so that training code can save its work."""
        nonlocal stop_count
        stop_count += 1
        child.send_signal(signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)
    _copy_streams(child, nonce)
    code = child.wait()
    name = processes.get_signal_name(-code) if code < 0 else None
    evidence = devices.describe_oom_kills(counters) if name == "KILL" and not stop_count else ""
    report: dict[str, object] = {"code": None if name else code, "signal": name, "evidence": evidence}
    return code if code >= 0 else 128 - code, report


def _copy_streams(child: subprocess.Popen[bytes], nonce: str) -> None:
    """Copy both streams of a rank to the log of this process; remaining child processes may keep them open."""
    streams, current_stream, deadline = selectors.DefaultSelector(), "out", None
    for name, pipe in (("out", child.stdout), ("err", child.stderr)):
        assert pipe is not None
        streams.register(pipe, selectors.EVENT_READ, name)
    while streams.get_map():
        ready = streams.select(_QUIET_SECONDS)
        if child.poll() is not None:
            deadline = deadline or time.monotonic() + _MAX_SECONDS
            if not ready or time.monotonic() > deadline:
                return
        for key, _ in ready:
            content = os.read(key.fd, 65_536)
            if not content:
                streams.unregister(key.fileobj)
                continue
            _write_log(content if key.data == current_stream else build_mark(nonce, key.data) + content)
            current_stream = key.data


def _write_log(content: bytes) -> None:
    while content:
        content = content[os.write(1, content) :]


if __name__ == "__main__":
    sys.exit(main())
