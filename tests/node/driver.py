"""Drives the real agent over two pipes, as a supervisor does over ssh, and collects its messages."""

import contextlib
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from distdl_jupyter.node import channels

TIMEOUT = 60


def until(condition, what="", seconds=TIMEOUT):
    """Poll until ``condition()`` is true and return its value."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, what or "it did not happen"
        time.sleep(0.02)
    return found


def resident(pid):
    """Return the memory of a process in bytes."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


class Driven:
    """One agent. ``listen`` False leaves its output unread until ``listen`` is called."""

    def __init__(self, *, timeout=20, listen=True, environment=None, shell=()):
        self.process = subprocess.Popen(
            [*shell, sys.executable, "-m", "distdl_jupyter.node", str(timeout)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )
        self.job = f"test-{uuid.uuid4().hex[:8]}"
        self.messages, self.data, self.closed, self.order = [], {}, set(), []
        self.folder = self.run = None
        self._reader = channels.FrameReader(expect_handshake=True)
        self._number = 0
        self._beating = threading.Event()
        self._lock = threading.Lock()
        self._thread = None
        if listen:
            self.listen()

    # receiving --------------------------------------------------------------------------------

    def listen(self):
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def _listen(self):
        while content := os.read(self.process.stdout.fileno(), 65_536):
            self.hear(content)

    def hear(self, content):
        for frame in self._reader.feed(content):
            if isinstance(frame, channels.Data):
                self.data.setdefault(frame.channel, bytearray()).extend(frame.bytes)
                if not frame.bytes:
                    self.closed.add(frame.channel)
            else:
                self.messages.append(frame)
            self.order.append(frame)

    def of(self, type_):
        return [message for message in list(self.messages) if message["type"] == type_]

    def exits(self, kind="rank"):
        return {message["process"]: message for message in self.of("exit") if message["kind"] == kind}

    def exit(self, process, seconds=TIMEOUT, kind="rank"):
        return until(lambda: self.exits(kind).get(process), f"process {process} did not end", seconds)

    def text(self, channel):
        return self.data.get(channel, b"").decode()

    # sending ----------------------------------------------------------------------------------

    def say(self, frame):
        with self._lock:
            self.process.stdin.write(frame)
            self.process.stdin.flush()

    def beat(self):
        """Send heartbeats until the end."""

        def beat():
            with contextlib.suppress(OSError, ValueError):
                while not self._beating.wait(0.2):
                    self.say(channels.encode_message("beat"))

        threading.Thread(target=beat, daemon=True).start()
        return self

    def ask(self, type_, *, within=TIMEOUT, **fields):
        number = self.request(type_, **fields)
        return until(lambda: self.reply(number), f"{type_} was not answered", within)

    def request(self, type_, **fields):
        self._number += 1
        self.say(channels.encode_message(type_, request=self._number, **fields))
        return self._number

    def reply(self, number):
        return next((message for message in self.of("reply") if message["request"] == number), None)

    def prepare(self, base, **fields):
        fields = {"folder": "/nonexistent", "proof": None, **fields}
        reply = self.ask("prepare", job=self.job, base=str(base), **fields)
        self.folder, self.run = Path(reply["folder"]), Path(reply["run"])
        return reply

    def python(self, code, *, process=0, out=1, err=2, **fields):
        """Return the fields of a process that runs a piece of Python."""
        argv = ["{python}", "-c", code, *fields.pop("arguments", ())]
        fields.setdefault("environment", {})
        return {"process": process, "argv": argv, "directory": None, "out": out, "err": err, **fields}

    def start(self, *processes):
        return self.ask("start", processes=list(processes))

    # the end ----------------------------------------------------------------------------------

    def hang_up(self):
        self._beating.set()
        with self._lock:
            self.process.stdin.close()

    def wait(self, seconds=TIMEOUT):
        self._beating.set()
        code = self.process.wait(seconds)
        if self._thread is not None:
            self._thread.join(seconds)
        return code

    def close(self):
        self._beating.set()
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors = self.process.stderr.read().decode()
        if self._thread is not None:
            self._thread.join(30)
        self.process.stdout.close()
        self.process.stderr.close()
