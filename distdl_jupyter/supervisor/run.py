"""Runs one job from its spec to its end: launch, watch, restart if requested, collect, clean up.

All decisions are based on the view folded from the job's events. The supervisor trusts no rank: it reads only JSON and
never unpickles.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from itertools import chain

from distdl_jupyter.clusters.base import Run
from distdl_jupyter.core import events, logfile, registry, user_settings
from distdl_jupyter.core.alerts import Alert
from distdl_jupyter.core.errors import DistDLError, LaunchFailed
from distdl_jupyter.core.events import State
from distdl_jupyter.core.failure import is_lost
from distdl_jupyter.core.humanize import plural, size
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.core.view import JobView
from distdl_jupyter.supervisor import control, resume
from distdl_jupyter.supervisor.attempt import Attempt, RunClock
from distdl_jupyter.supervisor.control import ControlReader, request
from distdl_jupyter.supervisor.launch import Launch, LaunchCanceled, call_in_background
from distdl_jupyter.supervisor.parts import CheckpointKeeper, read_git_state
from distdl_jupyter.supervisor.recorder import EventRecorder, build_redactor

#: Seconds between two checks for a cancel request.
_TICK_SECONDS = 0.1
#: Seconds before the first restart, doubled before each further one, and the maximum.
_MIN_DELAY_SECONDS, _MAX_DELAY_SECONDS = 1.0, 30.0
#: Seconds within which exits count as simultaneous.
_SIMULTANEOUS_SECONDS = 0.9
#: Seconds that sending outputs may take after the job is canceled.
_CANCEL_GRACE_SECONDS = 5.0


class Supervisor:
    """Runs one job. The caller holds the job's lock."""

    def __init__(self, folder: JobFolder, secret_variables: Mapping[str, str], wake: int) -> None:
        self._folder = folder
        self._spec = folder.read_spec()
        #: Masks secrets in everything that is written about the job.
        self.redactor = build_redactor(folder, self._spec, secret_variables)
        self._recorder = EventRecorder(folder, self._spec, self.redactor)
        self._history = resume.History()
        for batch, _ in chain(events.read_batches(folder.events), events.read_batches(folder.log, 0, logfile.read)):
            for event in batch:
                self._history.add(event)
                self._recorder.fold(event)
        self._recorder.continue_from(self._history)
        self._wake = wake
        driver = self._spec.group.plan.get("driver", "") if self._spec.group else ""
        self._control = ControlReader(folder.control, folder.lock, str(driver))
        self._checkpoints: CheckpointKeeper | None = None
        self._clock = RunClock(self._spec.max_run_duration_seconds)
        self._launch = Launch(self._recorder, self._control, self._clock, secret_variables)
        self._secret_variables = secret_variables
        #: The processes that write the job to experiment trackers.
        self._trackers: dict[str, subprocess.Popen[bytes]] = {}
        #: The reason why the last attempt was stopped (see ``Attempt``), and the message for the user.
        self._stopped_by = self._reason = ""
        #: The reason why the queue preempted the last attempt, or "" if the job is not requeued.
        self._preemption = ""

    def run(self) -> None:
        """Run the job to its end. In all cases, write a final state and leave no process running."""
        try:
            run = self._start(self._launch_or_reattach)
            threading.Thread(target=self._record_git, daemon=True).start()  # threads only after the fork
            self._start_trackers()
            if rule := self._spec.keep_checkpoints:
                self._checkpoints = CheckpointKeeper(self._folder, rule)
            while run is not None:
                self._run_attempt(run)
                if not self._will_restart:
                    break
                self._prepare_restart()
                run = self._start(self._launch.start, is_restart=True)
        except LaunchCanceled as canceled:
            self._stopped_by, self._reason = canceled.stopped_by, canceled.reason
            self._launch.remove_staged_data()
        except DistDLError as error:
            self._launch.remove_staged_data()
            if isinstance(error, LaunchFailed) and error.output:
                self._recorder.log(error.output)
            self._finish(f"{error.message} {error.hint}".strip(), failed=True, code=error.code)
            return
        self._finish(self._reason)

    def _record_git(self) -> None:
        state = read_git_state(self._spec.working_directory)
        if state is not None and self._folder.read_environment().git is None:
            with contextlib.suppress(OSError):
                self._folder.add_environment(git=self.redactor.mask_data(dataclasses.asdict(state)))

    def _start_trackers(self) -> None:
        """Start the processes that write the job to experiment trackers, or restart those that have exited."""
        running = [name for name, process in self._trackers.items() if process.poll() is None]
        names = [name for name in user_settings.get_trackers(self._spec) if name not in running]
        with contextlib.suppress(OSError):
            variables = {**self._spec.environment_variables, **self._secret_variables}
            self._trackers |= control.start_trackers(self._folder, names, variables)

    def announce_end(self) -> None:
        """Report the end of the job, after all other work: as telemetry, to trackers and as a message."""
        try:
            if user_settings.SETTINGS.read().enabled:
                control.start_reporter(self._folder, "telemetry")
        except (OSError, DistDLError) as error:
            print(f"telemetry: not sent, {error}", file=sys.stderr)  # noqa: T201 - into supervisor.log
        self._start_trackers()
        view, alert, group = self._recorder.view, self._recorder.end_alert, self._spec.group
        if alert is not None and group is None:
            control.notify(self._folder, view.name, view.state, alert)
        elif alert is not None and group is not None and view.reason == control.DRIVER_ENDED_REASON:
            # The driver of a study sends its messages, but this one has exited without doing so.
            end = Alert("end", control.DRIVER_ENDED_REASON)
            control.notify(self._folder, f"Scaling of {group.name}", view.state, end, id_=group.id)

    def interrupt(self) -> None:
        """Treat a signal to the supervisor as a stop request (called from a signal handler)."""
        with contextlib.suppress(DistDLError):
            request(self._folder.control, "cancel")

    def _launch_or_reattach(self) -> Run | None:
        """Launch the job, or reattach to it if an earlier supervisor died; return None if the job has ended."""
        history = self._history.events
        if not history or history[-1]["type"] != "resume":
            return self._launch.start()
        states = (event for event in history if event["type"] == "state" and event["state"] != State.QUEUED)
        if (start_event := next(states, None)) is not None:  # time in a queue is not run time
            self._clock.restart(ago=max(0.0, time.time() - start_event["t"]))
        run = self._launch.reattach(self._history)
        if run is None:
            self._launch.remove_staged_data()
        return run

    def _start(self, start: Callable[[], Run | None], *, is_restart: bool = False) -> Run | None:
        """Start the ranks. If the queue preempts the start or a restart fails, retry as often as allowed.

        Raises LaunchCanceled, and the DistDLError of the last allowed start.
        """
        while True:
            try:
                return start()
            except DistDLError as error:
                can_requeue = hasattr(self._launch, "cluster") and self._can_requeue
                self._preemption = self._launch.cluster.why_interrupted() if can_requeue else ""
                if not self._preemption and not (is_restart and self._can_restart):
                    raise
                self._stopped_by, self._reason = "", "" if self._preemption else error.message
            self._prepare_restart()
            start = self._launch.start

    def _run_attempt(self, run: Run) -> None:
        """Watch one attempt until all its processes have exited, then stop everything that it left behind."""
        launch, recorder = self._launch, self._recorder
        attempt = Attempt(
            run, recorder, launch.backend, self._control, self._clock, nonce=launch.nonce, wake=self._wake
        )
        try:
            attempt.watch()
            self._stopped_by, self._reason = attempt.stopped_by, attempt.reason
            was_stopped = self._stopped_by in ("user", "time")
            if recorder.view.failure is not None and not was_stopped and self._can_requeue:
                self._preemption = run.why_interrupted()
            attempt.drain()
            self._collect(run, attempt)
            attempt.stop_leftovers()
            if not self._will_restart:
                self._deliver()
                recorder.record_phase("clean", "no process left")
            attempt.close()
        finally:
            run.close()
        attempt.record_notices()

    @property
    def _can_requeue(self) -> bool:
        """Whether the job is requeued after the queue has preempted it."""
        spec = self._spec
        options = registry.check_options("clusters", spec.cluster, spec.cluster_options)
        return spec.kind != "ranks" and self._launch.cluster.max_requeues(options) > self._recorder.view.requeue_count

    @property
    def _can_restart(self) -> bool:
        view = self._recorder.view
        return len(view.restarts) - view.requeue_count < self._spec.max_restarts

    @property
    def _will_restart(self) -> bool:
        """Whether another attempt follows the one that has just ended."""
        if self._preemption or not self._can_restart or self._stopped_by in ("user", "time"):
            return bool(self._preemption)
        return self._stopped_by == "hang" or self._recorder.view.failure is not None

    def _prepare_restart(self) -> None:
        """Record a restart, remove the results of the last attempt, and wait. Raises LaunchCanceled."""
        recorder, view = self._recorder, self._recorder.view
        is_requeued = bool(self._preemption)
        failure = None if self._reason or is_requeued else view.failure
        reason = self._preemption or self._describe_end()
        self._stopped_by = self._reason = self._preemption = ""
        self._launch.lost_nodes = find_lost_nodes(view)
        self._clock.start_attempt()
        for path in self._folder.results.glob("rank-*.pkl"):  # the next attempt replaces them; checkpoints are kept
            path.unlink(missing_ok=True)
        recorder.flush()
        fields = {"queued": self._launch.cluster.has_queue, **({"requeued": True} if is_requeued else {})}
        recorder.write("restart", reason=reason, rank=None if failure is None else failure.rank, **fields)
        number = len(view.restarts) - view.requeue_count
        title = f"requeue {view.requeue_count}" if is_requeued else f"restart {number} of {view.max_restarts}"
        recorder.log(f"--- {title}: {reason} ---")
        if is_requeued:
            return
        seconds = compute_restart_delay(number)
        recorder.record_phase("start", f"{title} in {seconds:g} s")
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            self._launch.raise_if_canceled()
            time.sleep(min(_TICK_SECONDS, remaining))

    def _collect(self, run: Run, attempt: Attempt) -> None:
        """Fetch the values and files of the ranks into the job's folder."""
        recorder, folder = self._recorder, self._folder
        recorder.record_phase("collect")
        try:
            run.collect()
        except (DistDLError, OSError) as error:
            recorder.note("error", str(error), "not-collected")
        attempt.record_notices()
        values = list(folder.results.glob("rank-*.pkl"))
        outputs = [path for path in folder.outputs.rglob("*") if path.is_file()]
        total = 0
        for path in (*values, *outputs):
            with contextlib.suppress(OSError):  # deleted in the meantime
                total += path.stat().st_size
        files = f", {plural(len(outputs), 'file')}" if outputs else ""
        recorder.record_phase("collect", f"{plural(len(values), 'value')}{files}, {size(total)}")

    def _deliver(self) -> None:
        """Delete superfluous checkpoints and send the outputs, after the last attempt."""
        if self._checkpoints:
            self._checkpoints.close()
            if count := self._checkpoints.removed_count:
                self._recorder.log(f"Deleted {plural(count, 'checkpoint')}, kept {self._spec.keep_checkpoints}")

        def is_canceled() -> bool:
            return any(request["type"] == "cancel" for request in self._control.read())

        failed = self._recorder.view.failure is not None or self._stopped_by in ("time", "hang")
        deliver_outputs(self._spec, self._recorder, failed=failed, canceled=is_canceled)

    def _describe_end(self) -> str:
        """Return why the attempt was stopped or how the first rank failed, or "" if no rank failed."""
        failure, process_count = self._recorder.view.failure, self._recorder.view.process_count
        if self._reason or failure is None:
            return self._reason
        if failure.kind == "unequal":
            return failure.what
        subject = f"Rank {failure.rank} of {process_count} failed first" if process_count > 1 else "The process failed"
        evidence = f". {failure.evidence}" if failure.kind == "lost" and failure.evidence else ""
        return f"{subject}: {failure.what}{evidence}"

    def _finish(self, reason: str, *, failed: bool = False, code: str = "") -> None:
        recorder, restarts = self._recorder, self._recorder.view.restarts
        if recorder.view.state.ended:
            pass
        elif self._stopped_by == "user" and not failed:
            recorder.record_state(State.CANCELED, reason)
        elif self._stopped_by in ("time", "hang") or failed:
            recorder.record_state(State.FAILED, reason, code)
        elif recorder.view.failure is not None:
            reason = self._describe_end()
            if restarts:
                reasons = "; ".join(f"{n}. {restart.reason.rstrip('.')}" for n, restart in enumerate(restarts, 1))
                times = f"The job had been restarted {plural(len(restarts), 'time')}, after: {reasons}."
                reason = f"{reason.rstrip('.')}. {times}"
            recorder.record_state(State.FAILED, reason)
        else:
            recorder.record_state(State.COMPLETED)
        recorder.close()


def compute_restart_delay(number: int) -> float:
    """Return the delay in seconds before this restart, counted from 1."""
    return float(min(_MAX_DELAY_SECONDS, _MIN_DELAY_SECONDS * 2 ** min(number - 1, 10)))


def find_lost_nodes(view: JobView) -> frozenset[int]:
    """Return the nodes lost with the first failure: all their ranks were killed or have unknown exits.

    Emulated nodes cannot stop responding, so killed ranks count as well. A real node that still exists is used again.
    """
    if (failure := view.failure) is None:
        return frozenset()
    deadline = failure.when + _SIMULTANEOUS_SECONDS  # the supervisor stops the other ranks only 1 s after the failure
    others = (rank for rank in view.ranks if rank.signal != "KILL" or rank.ended is None or rank.ended >= deadline)
    remaining = {rank.node for rank in others if not is_lost(rank)}
    return frozenset({rank.node for rank in view.ranks} - remaining)


def deliver_outputs(spec: JobSpec, recorder: EventRecorder, *, failed: bool, canceled: Callable[[], bool]) -> None:
    """Send outputs, values and the log of a failed job to the destination.

    Every failure is only a warning, because the files stay in the job's folder. ``canceled`` is polled.
    """
    if not spec.outputs:
        return
    from distdl_jupyter.azure.identity import open_blob_service
    from distdl_jupyter.data import outputs

    stop = threading.Event()
    destination = outputs.build_url(spec)
    recorder.record_phase("collect", f"sending outputs to {destination}")
    call = call_in_background(
        lambda: outputs.upload(recorder.folder, spec, open_blob_service, include_log=failed, is_stopped=stop.is_set)
    )
    deadline: float | None = None
    while not wait([call], _TICK_SECONDS).done and (deadline is None or time.monotonic() < deadline):
        if deadline is None and canceled():
            stop.set()
            deadline = time.monotonic() + _CANCEL_GRACE_SECONDS
    problem = f"The outputs were not sent completely to {destination} because you canceled the job."
    if deadline is None:
        try:
            sent = call.result()
        except (DistDLError, OSError) as error:
            problem = f"The outputs were not sent: {str(error).rstrip('.')}."
        else:
            existing = f", {plural(sent.existing_count, 'file')} already existed" if sent.existing_count else ""
            recorder.log(f"Sent {plural(sent.file_count, 'file')}, {size(sent.byte_count)}, to {destination}{existing}")
            recorder.record_phase("collect", f"{plural(sent.file_count, 'file')} to {destination}")
            return
    recorder.note("warning", f"{problem} The files are still in {recorder.folder.path}.", "outputs")
