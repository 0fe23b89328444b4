"""Start real ranks in processes of their own from a handwritten job folder, and parse what they print."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

from distdl_jupyter.capture.pickler import Pickler, PickleReport
from distdl_jupyter.worker import channel

NONCE = "5f0c7d1e9ab2"
TIMEOUT = 240


class Folder:
    """A job's folder with its payload."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("code", "results"):
            (path / name).mkdir(parents=True, exist_ok=True)

    def cell(self, code, *, label="Cell [7] in quickstart.ipynb", number=7, first_line=1, values=None, more=None):
        filename = f"<{label}>"
        sources = {filename: {"text": code, "label": label, "cell": number, "first_line": first_line}, **(more or {})}
        return self._write(values or {}, kind="cell", code=code, filename=filename, sources=sources)

    def function(self, function, args=(), kwargs=None, sources=None):
        values = {"function": function, "args": args, "kwargs": kwargs or {}}
        return self._write(values, kind="function", sources=sources or {})

    def script(self, path, *arguments):
        return self._write({}, kind="script", script=str(path), arguments=list(arguments))

    def _write(self, values, **fields):
        payload = {"format": 1, "names": list(values), "path": [], "working_directory": str(self.path), **fields}
        (self.path / "payload.json").write_text(json.dumps(payload))
        if values:
            with (self.path / "payload.pkl").open("wb") as file:
                pickler = Pickler(file, PickleReport())
                for value in values.values():
                    pickler.dump(value)
        return self

    def value(self, rank=0):
        return pickle.loads((self.path / "results" / f"rank-{rank}.pkl").read_bytes())


class Ended:
    """What a rank that ended has left behind."""

    def __init__(self, code, out, err):
        self.code, self.err, self.value = code, err.decode(), None
        self.reports, texts = [], []
        for line in out.split(b"\n"):
            text, report = channel.split_line(line, NONCE)
            if report is None:
                texts.append(text + b"\n")
            else:
                self.reports.append(report)
                texts.append(text)
        self.out = b"".join(texts).decode().removesuffix("\n")

    def of(self, type_):
        return [report for report in self.reports if report["type"] == type_]

    @property
    def result(self):
        (result,) = self.of("result")
        return result

    @property
    def error(self):
        return self.result["error"]

    def metric(self, name):
        return [(r["step"], r["values"][name]) for r in self.of("metric") if name in r["values"]]


def environment(folder, rank=0, size=1, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DISTDL_", "COVERAGE"))}
    return kept | {
        "DISTDL_JOB_ID": folder.path.name,
        "DISTDL_JOB_DIR": str(folder.path),
        "DISTDL_NONCE": NONCE,
        "DISTDL_RANK": str(rank),
        "DISTDL_WORLD_SIZE": str(size),
        "DISTDL_LOCAL_RANK": str(rank),
        "DISTDL_LOCAL_SIZE": str(size),
        "DISTDL_NODE_RANK": "0",
        "DISTDL_NODE_COUNT": "1",
        "DISTDL_HOST": "node-a",
        "PYTHONUNBUFFERED": "1",
        **more,
    }


def start(folder, rank=0, size=1, *, env=None, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more):
    """Start one rank as a cluster does."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "distdl_jupyter.worker"],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        cwd=folder.path,
        env=environment(folder, rank, size, **more) if env is None else env,
        start_new_session=True,
    )


def end(process):
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    return Ended(process.returncode, out or b"", err or b"")


def run(folder, rank=0, size=1, **more):
    """Run one rank to its end."""
    return end(start(folder, rank, size, **more))


def run_all(folder, size, **more):
    """Run all ranks of a job to their ends."""
    started = [start(folder, rank, size, **more) for rank in range(size)]
    return [end(process) for process in started]
