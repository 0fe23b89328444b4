"""The agent: one loop on another host that serves one supervisor over a pair of byte streams.

It starts processes, sends the output of each on a separate channel, and reports the exit of each. It stops everything
when the supervisor is gone: immediately when its input ends, or after ``timeout`` seconds without a message. The loop
waits only on its descriptors; threads do slow work. If the agent itself is killed, its watchdog cleans up: a tiny
process, forked before the agent does anything else, that only waits for the end of a pipe.

Every request gets exactly one response: with fields, or with ``error``, one sentence. Slow requests are handled in a
thread. The messages:

=========== ============================================== ====================================================
type        fields                                         reply
=========== ============================================== ====================================================
facts       modules, programs, packages (all optional)     the result of ``facts.gather``
listen      address                                        port
reach       targets, seconds                               reached
prepare     job, folder, proof: [name, text] or null,      shared, folder, run, and working_directory_there
            base, working_directory (optional)             if requested
put         channel; then a tar as data of it, b"" ends it files, bytes (when all is written)
get         channel, paths                                 a tar as data, b"" ends it; then files, bytes, skipped
ports       count, address                                 ports
fingerprint path                                           fingerprint, null if it cannot be read
find_copy   digest, base                                   path of a folder with this content, or ""
copy        channel, digest, base; then a tar as data,     path, files, bytes (when all is written)
            b"" ends it
start       processes: [{kind, process, argv, environment, pids: {process: pid}; data of ``out`` and ``err`` and a
            directory, out, err, open_input, python}]      message ``exit`` {kind, process, code, signal, evidence}
feed        kind, process, text                            (nothing) when written to its standard input
pipes       ranks: [{rank, out, err}], variables           (nothing) data of ``out`` and ``err``
signal      name: INT, TERM, KILL; to: ranks, all          sent
alive                                                      alive, and how many of them are workers
stuck                                                      pids that no signal reaches
stacks      ranks                                          (nothing) and messages ``stacks`` as the ranks respond:
                                                           {answers: {rank: ``processes.StackDump`` as data}}
profile     ranks, recording                               (nothing) ranks read the request (``worker.hooks.profile``)
serving     rank                                           where a persistent rank listens: socket, token
connect     rank, channel                                  (nothing) the channel is relayed to and from that rank
hold        channel, held                                  (nothing) the channel is not read while it is held; a
                                                           message ``hold`` requests the same of the supervisor
drain                                                      evidence of an out-of-memory kill, or "", after all
                                                           output written so far
answer      shell, then any of out, err (texts), code      (nothing)
slots       job, name, need: [gpus, devices, amounts],     held: its devices, null while it waits; then
            priority, number                               position (``slots.QueuePosition`` as data), limits
sweep       job, base                                      killed
end         keep                                           ended; the agent exits
=========== ============================================== ====================================================

``open_input`` is for services: their input ends with the job, and ``alive`` and ``signal`` exclude them. ``beat``
is not a request. A message without a ``request`` number gets no response. The method ``_on_TYPE`` handles a request: of
``job.Job`` if it is about the processes of a job, which an agent in the supervisor's own process may run too, else of
``Agent``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import queue
import selectors
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from distdl_jupyter.node import channels, data_cache, files, processes, run_dir, slots
from distdl_jupyter.node import job as node_job
from distdl_jupyter.node import ports as node_ports
from distdl_jupyter.node.channels import Channels, Inbox, Outbox, SocketWriter, watch
from distdl_jupyter.node.files import TransferRefused
from distdl_jupyter.node.job import Fields, Job, Reply, RequestFailed
from distdl_jupyter.node.mpi_shell import ShellRelays

#: Seconds between two checks for the last output of a process that has exited, and for responses with stacks.
_POLL_SECONDS = 0.05
#: Timeout in seconds for sending the last response.
_FLUSH_SECONDS = 5.0
#: Maximum length of the queue through which threads send frames to the loop.
_MAX_POSTED = 16
#: Timeout in seconds for connecting to a rank's socket, which blocks only under very many connections.
_CONNECT_SECONDS = 1.0
#: The message that dismisses the watchdog.
_DISMISSAL = b"null"


class Watchdog:
    """A handle to the watchdog, which it forks. Raises OSError if the fork fails."""

    def __init__(self) -> None:
        read_fd, self._pipe_fd = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _watch(read_fd)
        os.close(read_fd)

    def watch(self, marks: Mapping[str, str], run: Path, copy: Path | None, base: str = "") -> None:
        """Set the marks of the processes to kill, and the private, copied and staged folders to remove."""
        job = {"marks": dict(marks), "run": str(run), "copied": str(copy) if copy else None, "base": base}
        os.write(self._pipe_fd, json.dumps(job).encode() + b"\n")

    def dismiss(self) -> None:
        """Stop the watchdog and wait for its exit."""
        os.write(self._pipe_fd, _DISMISSAL + b"\n")
        os.close(self._pipe_fd)
        os.waitpid(self.pid, 0)


def _watch(pipe_fd: int) -> None:
    """Run in the forked child: wait for the end of the pipe ``pipe_fd``, and never return."""
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # Close all other descriptors, because an open copy would keep the connection open.
        os.dup2(pipe_fd, 3)
        devnull = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(devnull, fd)
        os.closerange(4, 65_536)
        with open(3, encoding="utf-8") as pipe:
            messages = [json.loads(line) for line in pipe]
        if job := messages and messages[-1]:
            processes.kill_all(lambda: processes.find_job_pids(job["marks"]), timeout=10.0)
            shutil.rmtree(job["run"], ignore_errors=True)
            data_cache.remove_links(job["marks"][processes.MARK], job["base"] or files.DEFAULT_BASE)
            if job["copied"]:
                files.remove_except_results(Path(job["copied"]))
    finally:
        os._exit(0)


class SupervisorLost(Exception):
    """The supervisor is gone; exit."""


class Agent:
    """Serves one supervisor: reads its requests from descriptor ``source`` and writes to descriptor ``sink``."""

    #: Seconds between two heartbeats.
    beat_seconds: ClassVar[float] = 1.0

    def __init__(self, source: int, sink: int, timeout: float, watchdog: Watchdog) -> None:
        self._source = source
        self._timeout = timeout
        self._watchdog = watchdog
        self._reader = channels.FrameReader(expect_handshake=False)
        self._selector = selectors.DefaultSelector()
        self._urgent_selector = selectors.DefaultSelector()
        self._outbox = Outbox(sink)
        self._thread_frames: queue.Queue[bytes] = queue.Queue(_MAX_POSTED)
        self._receivers: dict[int, Inbox | SocketWriter] = {}
        self._threads: set[threading.Thread] = set()
        self._received_at = self._beat_at = time.monotonic()
        #: Resource samples to send with the next heartbeat.
        self._samples: list[dict[str, Any]] = []
        self._has_ended = False
        #: Whether SIGTERM was received.
        self.is_terminating = False
        self._is_writing = False
        self._channels = Channels(self._selector, self._outbox)
        self._relays = ShellRelays(self._selector, self.send)
        self._ports = node_ports.Ports()
        self.job: Job | None = None
        #: The resources of this machine that the job holds.
        self._slot: slots.QueueSlot | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """Wake the loop (from a thread or a signal handler)."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    def send(self, type_: str, **fields: Any) -> None:
        """Send a message."""
        self._outbox.put(channels.encode_message(type_, **fields))

    def should_stop(self) -> bool:
        """Return whether to stop everything: on a signal, or when the supervisor has timed out."""
        return self.is_terminating or self.idle_seconds > self._timeout

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last message of the supervisor."""
        return time.monotonic() - self._received_at

    def on_exit(self, fields: Mapping[str, Any]) -> None:
        """Handle the exit of a process after it was reported to the supervisor."""
        return

    # the loop ---------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until the end and return the exit code: 0 for an orderly end."""
        self._selector.register(self._wake_read, selectors.EVENT_READ, lambda: os.read(self._wake_read, 65_536))
        self._urgent_selector.register(self._wake_read, selectors.EVENT_READ)
        self._urgent_selector.register(self._source, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        # Use handlers, not SIG_IGN, which ranks and launchers would inherit.
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "is_terminating", True))
        self._outbox.put(channels.HANDSHAKE)
        try:
            self._flush()
            while not self._has_ended:
                self._run_once()
            deadline = time.monotonic() + _FLUSH_SECONDS
            while not self._outbox.is_empty and time.monotonic() < deadline:
                self._flush()
                time.sleep(_POLL_SECONDS if self._is_writing else 0)
        except BaseException as error:
            if self.job is not None:
                self.job.terminate()
                self.job.clean_up(files.remove_except_results)
            if self._slot is not None:
                self._slot.release()
            if not isinstance(error, SupervisorLost):
                raise
            return 1
        finally:
            self._watchdog.dismiss()
        return 0

    def _run_once(self) -> None:
        # Do not read from the supervisor while the disk cannot keep up.
        is_readable = not any(receiver.is_behind for receiver in self._receivers.values())
        if not is_readable:
            self._received_at = time.monotonic()
        watch(self._selector, self._source, selectors.EVENT_READ, self._receive, enabled=is_readable)
        # Pause before reading busy ranks again; requests and process exits interrupt the pause.
        if (pause := self._channels.finish_round()) and not self._is_writing:
            self._urgent_selector.select(pause)
        job, now = self.job, time.monotonic()
        timeout = min(self._beat_at + self.beat_seconds - now, math.inf if job is None else job.get_sample_delay(now))
        if self.is_terminating or (job is not None and job.needs_polling):
            timeout = _POLL_SECONDS
        for key, _ in self._selector.select(max(0.0, timeout)):
            key.data()
        while not (self._outbox.is_full or self._thread_frames.empty()):
            self._outbox.put(self._thread_frames.get_nowait())
        self._report_job()
        self._beat()
        self._flush()
        self._channels.regulate()
        if self.should_stop():
            raise SupervisorLost

    def _receive(self) -> None:
        content = b""
        with contextlib.suppress(OSError):
            content = os.read(self._source, 256 * 1024)
        if not content:
            raise SupervisorLost
        self._received_at = time.monotonic()
        for frame in self._reader.feed(content):
            if isinstance(frame, dict):
                self._handle(frame)
            elif (receiver := self._receivers.get(frame.channel)) is not None:
                receiver.feed(frame.bytes)
                if not frame.bytes:
                    del self._receivers[frame.channel]

    def _report_job(self) -> None:
        """Report exits, stacks and resource samples of the job's processes."""
        if self.job is None or self._has_ended:
            return
        for fields in self.job.collect_exits(outbox_is_full=self._outbox.is_full):
            self.send("exit", **fields)
            self.on_exit(fields)
        if answers := self.job.take_stacks():
            self.send("stacks", answers=answers)
        if (sample := self.job.sample()) is not None:
            self._samples.append(sample)
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        if not self._threads:
            self.job.reap_adopted()

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beat_at >= self.beat_seconds:
            self._beat_at = now
            if self._slot is not None and self._slot.has_resources:
                self._slot.ensure_file()
            if self._samples and not self._outbox.is_full:
                self.send("resources", samples=self._samples)
            self._samples = []
            if self._outbox.is_empty:  # any frame serves as a heartbeat
                self.send("beat")

    def _flush(self) -> None:
        try:
            self._outbox.flush()
        except OSError:
            raise SupervisorLost from None
        self._is_writing = not self._outbox.is_empty
        watch(self._selector, self._outbox.fd, selectors.EVENT_WRITE, lambda: None, enabled=self._is_writing)

    # requests ---------------------------------------------------------------------------------

    def _handle(self, fields: Fields) -> None:
        """Handle a request; a handler returns the response, or a function that a thread calls for it."""
        type_ = str(fields["type"])
        if type_ == "beat" or self._has_ended:
            return

        def call() -> Any:
            handler = getattr(self, f"_on_{type_}", None)
            return handler(fields) if handler is not None else self._prepared_job.handle(type_, fields)

        reply = _invoke(type_, call)
        if not callable(reply):
            self._respond(fields, reply, self._outbox.put)
            return
        thread = threading.Thread(target=lambda: self._respond(fields, _invoke(type_, reply), self._post), daemon=True)
        self._threads.add(thread)
        thread.start()

    @property
    def _prepared_job(self) -> Job:
        if self.job is None:
            raise RequestFailed("The agent has no job. Send the request 'prepare' first.")
        return self.job

    def _respond(self, fields: Fields, reply: Reply | None, send: Callable[[bytes], object]) -> None:
        if (number := fields.get("request")) is None:
            return
        try:
            send(channels.encode_message("reply", **{**(reply or {}), "request": number}))
        except (TypeError, ValueError) as error:
            send(channels.encode_message("reply", request=number, error=f"The reply cannot be sent: {error}."))

    def _post(self, frame: bytes) -> None:
        """Send frames from a thread; blocks while the outbox is full."""
        self._thread_frames.put(frame)
        self.wake()

    def _on_facts(self, fields: Fields) -> Callable[[], Reply]:
        from distdl_jupyter.node import facts

        names = [[str(text) for text in fields.get(name, ())] for name in ("modules", "programs", "packages")]
        return lambda: facts.gather(*names)

    def _on_listen(self, fields: Fields) -> Callable[[], Reply]:
        return lambda: {"port": node_ports.listen(str(fields["address"]))[1]}

    def _on_reach(self, fields: Fields) -> Callable[[], Reply]:
        targets = [(str(address), int(port)) for address, port in fields["targets"]]
        return lambda: {"reached": node_ports.reach(targets, float(fields["seconds"]))}

    def _on_ports(self, fields: Fields) -> Reply:
        return {"ports": self._ports.reserve(int(fields["count"]), str(fields["address"]))}

    def _on_sweep(self, fields: Fields) -> Callable[[], Reply]:
        return lambda: {"killed": node_job.sweep(str(fields["job"]), str(fields.get("base", "")))}

    def _on_prepare(self, fields: Fields) -> Reply:
        """Begin the job, and stop the processes that an earlier supervisor left."""
        name = files.check_name(str(fields["job"]))
        if self.job is not None and self.job.name != name:
            raise RequestFailed("The agent already has another job.")
        base, proof = str(fields.get("base") or ""), fields.get("proof")
        workdir = files.find_workdir(name, str(fields["folder"]), proof and (str(proof[0]), str(proof[1])), base)
        try:
            if self.job is not None:
                self.job.kill()
                self.job.clean_up(None)
            self.job = Job(name, workdir, self._channels, [self._watchdog.pid], base)
            run = self.job.run.path
            self._watchdog.watch(self.job.marks, run, workdir.folder if workdir.is_copy else None, base)
            self._relays.listen(run / run_dir.SOCKET)
        except OSError:
            if workdir.is_copy:
                shutil.rmtree(workdir.folder, ignore_errors=True)
            raise
        reply = {"shared": not workdir.is_copy, "folder": str(workdir.folder), "run": str(run)}
        if directory := fields.get("working_directory"):
            reply["working_directory_there"] = Path(str(directory)).is_dir()
        return reply

    def _on_fingerprint(self, fields: Fields) -> Reply:
        with contextlib.suppress(OSError):
            return {"fingerprint": data_cache.fingerprint(str(fields["path"]))}
        return {"fingerprint": None}

    def _on_find_copy(self, fields: Fields) -> Reply:
        return {"path": data_cache.find_copy(str(fields["digest"]), str(fields.get("base") or ""))}

    def _on_copy(self, fields: Fields) -> Callable[[], Reply]:
        copy = data_cache.FolderCopy(str(fields["digest"]), str(fields.get("base") or ""))
        inbox = self._receivers[int(fields["channel"])] = Inbox(on_space=self.wake)
        return lambda: copy.finish(lambda: files.receive_files(copy.folder, inbox)._asdict())

    def _on_put(self, fields: Fields) -> Callable[[], Reply]:
        inbox = self._receivers[int(fields["channel"])] = Inbox(on_space=self.wake)
        return lambda: files.receive_files(self._prepared_job.workdir.folder, inbox)._asdict()

    def _on_get(self, fields: Fields) -> Callable[[], Reply]:
        folder, channel = self._prepared_job.workdir.folder, int(fields["channel"])

        def send() -> Reply:
            try:
                paths = [str(path) for path in fields["paths"]]
                return files.pack(folder, paths, lambda part: self._post(channels.encode_data(channel, part)))._asdict()
            finally:
                self._post(channels.encode_data(channel, b""))

        return send

    def _on_slots(self, fields: Fields) -> Callable[[], Reply]:
        slot = self._slot = self._slot or slots.QueueSlot(str(fields["job"]), str(fields["name"]), fields.get("number"))
        gpus, devices, amounts = fields["need"]
        amounts = {str(name): float(amount) for name, amount in amounts.items()}
        request = slots.ResourceRequest(int(gpus), tuple(map(str, devices)), amounts)

        def acquire() -> Reply:
            position = slot.acquire(request, priority=float(fields["priority"]))
            assigned_gpus = list(slot.gpus) if position is None else None
            return {"held": assigned_gpus, "position": position, "limits": slots.measure_limits()}

        return acquire

    def _on_feed(self, fields: Fields) -> Callable[[], None]:
        process = str(fields["kind"]), int(fields["process"])
        return functools.partial(self._prepared_job.feed, *process, str(fields["text"]))

    def _on_connect(self, fields: Fields) -> None:
        """Relay between a channel and a rank's socket until either end closes."""
        path, channel = self._prepared_job.handle("serving", fields)["socket"], int(fields["channel"])
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise RequestFailed(f"Rank {fields['rank']} does not respond.") from error
        self._channels.add(connection.dup().detach(), channel)
        hold = functools.partial(self.send, "hold", channel=channel)
        self._receivers[channel] = SocketWriter(connection, self._selector, hold)

    def _on_hold(self, fields: Fields) -> None:
        self._channels.hold(int(fields["channel"]), is_held=bool(fields["held"]))

    def _on_answer(self, fields: Fields) -> None:
        self._relays.answer(int(fields["shell"]), fields)

    def _on_alive(self, fields: Fields) -> Reply:
        return self.job.handle("alive", fields) if self.job is not None else {"alive": 0, "workers": 0}

    def _on_end(self, fields: Fields) -> Reply:
        """End the job; exit after this round."""
        ended = self.job.kill() if self.job is not None else 0
        self._channels.end_all()
        self._has_ended = True
        if self.job is not None:
            self.job.clean_up(None if fields.get("keep") else functools.partial(shutil.rmtree, ignore_errors=True))
        if self._slot is not None:
            self._slot.release()
        return {"ended": ended}


def _invoke(type_: str, function: Callable[[], Any]) -> Any:
    """Return the result of ``function``, or an error response of one sentence."""
    try:
        return function()
    except (RequestFailed, TransferRefused) as error:
        text = str(error)
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}." if error.filename else f"{error.strerror}."
        text = str(error) if error.strerror is None else reason
    except Exception as error:  # noqa: BLE001  no request may end the agent
        reason = str(error).removesuffix(".")
        text = f"The request {type_!r} is not valid: {type(error).__name__}: {reason}."
    return {"error": text}


def serve(make_agent: Callable[[Watchdog], Agent]) -> NoReturn:
    """Prepare this process, run an agent in it, and exit."""
    if sys.platform != "linux":
        sys.stderr.write(f"Ranks run only on Linux hosts, but this host runs {sys.platform}. Choose another host.\n")
        os._exit(os.EX_UNAVAILABLE)
    # The agent's parent may block signals, and ranks would inherit the mask (signal(7)).
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    watchdog = Watchdog()
    processes.adopt_orphans()
    code = make_agent(watchdog).run()
    sys.stderr.flush()
    os._exit(code)  # threads that wait for a disk or a host must not delay the exit
