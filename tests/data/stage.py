"""The fixture ``stage``: the stager as a program, with an order, answers to its questions, and what it leaves."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest


class Run:
    """One run of the program; ``sas`` is called for each signature that it asks for."""

    def __init__(self, order, sas=None, *, before=(), **environment):
        self.messages = []
        self.asked = 0
        self._sas = sas or (lambda source: {"sas": ""})
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "distdl_jupyter.data.stager"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PATH": "/usr/bin:/bin", **environment},
        )  # fmt: skip
        self._write(order)
        self._errors = b""
        self._threads = [threading.Thread(target=self._listen), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _write(self, told):
        self.process.stdin.write(json.dumps(told).encode() + b"\n")
        self.process.stdin.flush()

    def _listen(self):
        for line in self.process.stdout:
            message = json.loads(line)
            with self._news:
                self.messages.append(message)
                self._news.notify_all()
            if message["type"] == "renew":
                self.asked += 1
                answer = self._sas(message["source"])
                with contextlib.suppress(OSError):  # it may be ended at any moment
                    self._write({"type": "sas", "source": message["source"], **answer})

    def _read_errors(self):
        self._errors = self.process.stderr.read()

    def until(self, condition, timeout=60):
        """Wait for a message that ``condition`` fits, and return it."""
        with self._news:
            assert self._news.wait_for(lambda: any(map(condition, self.messages)), timeout), self.messages[-5:]
            return next(filter(condition, self.messages))

    def kill(self):
        self.process.kill()
        return self.end()

    def end(self, timeout=120):
        """Wait for the end and return the last message."""
        self.code = self.process.wait(timeout)
        for thread in self._threads:
            thread.join(timeout)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                stream.close()
        return self.messages[-1] if self.messages else {}

    def staged(self):
        """Wait for the end, which has to be a good one; return its message."""
        last = self.end()
        assert (self.code, last.get("type")) == (0, "staged"), (last, self._errors.decode())
        assert self._errors == b""
        return last

    def failed(self):
        """Wait for the end, which has to be a failure; return its message."""
        last = self.end()
        assert (self.code, last.get("type")) == (1, "failed"), (last, self._errors.decode())
        assert self._errors == b""
        assert all(word not in last["text"] + last["remedy"] for word in ("sig=", "Traceback", "please"))
        return last

    def of(self, kind):
        return [message for message in self.messages if message["type"] == kind]

    @property
    def everything(self):
        """All that it said."""
        return json.dumps(self.messages) + self._errors.decode()


class Stage:
    """Runs the program with a base of the test; at the end nothing it left may hold a signature."""

    def __init__(self, base, ca):
        self.base = base
        self.ca = Path(ca).read_text()
        self.runs = []

    def run(self, *sources, sas=None, before=(), environment=None, job="job-1", **more):
        order = {"job": job, "base": str(self.base), "workers": 4, "ca": self.ca, "sources": sources, **more}
        self.runs.append(Run(order, sas, before=before, **(environment or {})))
        return self.runs[-1]

    def files(self, folder):
        """Return what lies below a folder, with content."""
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(Path(folder).rglob("*"))
                if path.is_file()}  # fmt: skip

    def left(self, kind):
        """Return the files of the cache with this end of name."""
        return sorted(path for path in (self.base / "blobs").rglob("*") if path.is_file() and path.suffix == kind)

    def close(self):
        for run in self.runs:
            if run.process.poll() is None:
                run.kill()
        for run in self.runs:
            assert "sig=" not in run.everything
        for path in self.base.rglob("*") if self.base.exists() else ():
            assert b"sig=" not in bytes(path)
            assert not path.is_file() or b"sig=" not in path.read_bytes(), f"{path} holds a signature"


@pytest.fixture
def stage(tmp_path, certificates):
    made = Stage(tmp_path / "base", certificates[0])
    yield made
    made.close()


@pytest.fixture
def container(azurite):
    return azurite.container()


def noise(size, seed=0):
    return random.Random(seed).randbytes(size)


@pytest.fixture
def large(container):
    """A blob of two ranges without a checksum."""
    container.data = noise(17 * 2**20)
    container.put("large", container.data, md5=False)
    return container


def source(container, prefix="", name="train", address="", items=None):
    """Return what an order says of a prefix of a container; ``address`` is another endpoint than Azurite's own."""
    return {"name": name, "variable": f"DISTDL_DATA_{name.upper()}", "kind": "blob", "prefix": prefix,
            "address": f"{address or container.azurite.endpoint}/{container.name}",
            "items": container.items(prefix) if items is None else items}  # fmt: skip


def reading(container, **more):
    """Return who answers what the program asks with a signature that is good for an hour."""
    return lambda _: {"sas": container.sas(**more)}
