"""The facade that every surface uses: submit, list, attach, and the handle to a job.

A ``Job`` is stateless: it reads everything from the job's folder, so any process can open a handle to any job, and a
job survives the process that submitted it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from distdl_jupyter.core import checkpoints, files, machine, redact, tracking
from distdl_jupyter.core.errors import (
    InvalidSpec,
    JobNotFound,
    JobNotRunning,
    JobStillRunning,
    LaunchFailed,
    explain_interrupt,
)
from distdl_jupyter.core.events import State
from distdl_jupyter.core.files import JobLock
from distdl_jupyter.core.humanize import finding as format_finding
from distdl_jupyter.core.humanize import plural, short_id
from distdl_jupyter.core.logfile import EventWriter, LogLine, read_last_lines, split_lines
from distdl_jupyter.core.options import override
from distdl_jupyter.core.plan import MOVED_PREFIX, make_not_queued_error
from distdl_jupyter.core.series import build_figure as curve_figure
from distdl_jupyter.core.spec import Group, JobEnvironment, JobSpec
from distdl_jupyter.core.store import JobFolder, JobStore, create_id
from distdl_jupyter.core.tracking import TrackerRecord
from distdl_jupyter.core.view import JobView
from distdl_jupyter.jobs import job_list, rerun, results
from distdl_jupyter.jobs.reader import POLL_SECONDS, JobReader, finalize_abandoned
from distdl_jupyter.jobs.rerun import StoredCode
from distdl_jupyter.supervisor import control
from distdl_jupyter.views.job_table import JobRow, JobTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pandas as pd

    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.views.job_page import CheckpointList
    from distdl_jupyter.views.resources import ResourceTable
    from distdl_jupyter.views.stacks import StacksDisplay
    from distdl_jupyter.views.steps import ProfileDisplay, StepTimesDisplay

    #: The code of a job: captured, or that of an earlier job.
    Code: TypeAlias = CapturedCode | StoredCode


class Job:
    """A handle to one job. Handles are cheap to create and safe to use from several threads."""

    def __init__(self, folder: JobFolder, end: JobRow | None = None) -> None:
        self.folder = folder
        self.id = folder.id
        #: The row of an ended job, so that a long list can be displayed without reading the jobs.
        self._ended_row = end
        self._callbacks: list[Callable[[], None]] = []
        self._view_lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Job], tuple[JobFolder, JobRow | None]]:
        return Job, (self.folder, self._ended_row)

    @functools.cached_property
    def _reader(self) -> JobReader:
        return JobReader(self.folder)

    @property
    def spec(self) -> JobSpec:
        """The specification that the job was submitted with."""
        return self._reader.spec

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.spec.name if self._ended_row is None else self._ended_row.name

    @property
    def state(self) -> State:
        """The current state of the job."""
        return self.view().state if self._ended_row is None else State(self._ended_row.state)

    def view(self) -> JobView:
        """Return a snapshot of the job: state, ranks, metrics, notes and failure (see ``core.view``)."""
        with self._view_lock:
            return self._reader.catch_up()

    def on_settled(self, callback: Callable[[], None]) -> None:
        """Register a function that ``wait`` or ``result`` of this handle calls once, after the job has ended."""
        self._callbacks.append(callback)

    def wait(self, timeout: float | None = None) -> Job:
        """Wait until the job has ended, at most ``timeout`` seconds, and return this handle.

        Raises TimeoutError after ``timeout`` seconds; the job keeps running. A failed job raises nothing here, only in
        ``result``.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with explain_interrupt(lambda: describe_interrupt(self)):
            while not self.view().state.ended:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"Job {self.id} is still {self.state.value} after {timeout:g} s and keeps running."
                    )
                time.sleep(POLL_SECONDS)
        while self._callbacks:
            self._callbacks.pop(0)()
        return self

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the job has ended and return the value of rank 0. The values of other ranks are not loaded.

        Raises JobFailed, TimeoutError after ``timeout`` seconds, and ResultUnavailable for a value that could not be
        pickled.
        """
        view = self._wait_for_completion(timeout)
        return results.load_value(self.folder, view.ranks[0])

    def results(self, timeout: float | None = None) -> list[Any]:
        """Wait until the job has ended and return the values of all ranks, in rank order.

        Raises JobFailed, TimeoutError after ``timeout`` seconds, and ResultUnavailable for a value that could not be
        pickled.
        """
        return [results.load_value(self.folder, rank) for rank in self._wait_for_completion(timeout).ranks]

    def _wait_for_completion(self, timeout: float | None) -> JobView:
        """Wait for the end and return the view. Raises JobFailed, TimeoutError.

        A job that was canceled after all its ranks had returned their values counts as completed.
        """
        self.wait(timeout)
        view = self.view()
        has_delivered = view.state is State.CANCELED and all(rank.ok for rank in view.ranks)
        if view.state is not State.COMPLETED and not has_delivered:
            raise results.make_job_failed(self.folder, view)
        return view

    def logs(self, rank: int | None = None, *, follow: bool = False, tail: int | None = None) -> Iterator[LogLine]:
        """Yield the lines of the log, of all ranks or of one ``rank``.

        Each line has ``rank``, ``stream``, ``time`` and ``text``; ``str(line)`` is the text. With ``follow``, new lines
        are yielded until the job has ended. With ``tail``, only the last ``tail`` lines of the current log are yielded.
        """
        reader = JobReader(self.folder, lines=True)
        if tail is not None:
            lines, reader.log_cursor = read_last_lines(self.folder.log, tail, rank)
            yield from lines
            if not follow:
                return
        batches = reader.follow() if follow else iter(reader.read, [])
        with explain_interrupt(lambda: describe_interrupt(self)):
            for batch in batches:
                for line in split_lines(batch, self.folder.path):
                    if rank is None or line.rank == rank:
                        yield line

    def metrics(self) -> pd.DataFrame:
        """Return all reported metrics as a DataFrame: one row per report, with ``rank``, ``step``, ``time`` (UTC).

        Each metric is a column. The first 100,000 reports are complete; later ones that would not be visible in a curve
        are merged into one row, the last. After a restart, the column ``attempt`` counts from 0, and steps that a later
        attempt reports again occur twice.
        """
        return results.read_metrics(self.folder)

    def figure(self, metric: str | None = None, *, each_rank: bool = False, log: bool = False) -> Any:
        """Return a plotly Figure of one metric over steps; the default is the first metric.

        Raises InvalidSpec if the job has not reported the metric.
        """
        import plotly.graph_objects as go

        reader = JobReader(self.folder, curves=True)
        reader.catch_up()
        names = list(reader.view.metrics)
        name = metric if metric is not None else next(iter(names), None)
        if name not in names:
            choices = ", ".join(names) or "none yet"
            raise InvalidSpec(f"Unknown metric {name!r}. Use one of: {choices}.", code="metric-unknown", field="metric")
        return go.Figure(curve_figure(reader.curves, name, each_rank=each_rank, log=log, source_job=reader.source_job))

    def cancel(self, *, now: bool = False, reason: str = "") -> None:
        """Cancel the job, from any process: send INT, then TERM, then KILL, each after a grace period.

        With ``now``, send KILL immediately. ``reason`` is a sentence that is recorded with the end of the job.

        Returns when the request is written; ``wait`` waits for the end. Raises JobNotRunning if the job has ended, and
        JobStillRunning if its supervisor runs on a host that no longer responds; the request stays pending there.
        """
        if self.view().state.ended:
            raise JobNotRunning(
                f"Job {self.id} has ended ({self.state.value}), so it cannot be canceled.", code="nothing-to-cancel"
            )
        control.request(self.folder.control, "cancel", now=now, **({"reason": reason} if reason else {}))
        supervisor = self.folder.read_supervisor()
        if supervisor.is_on_other_host and supervisor.is_silent:
            raise JobStillRunning(
                f"Job {self.id} was asked to stop. {supervisor.describe()}",
                code="stop-pending",
                hint=supervisor.get_remedy(self.id),
            )

    def declare_lost(self) -> None:
        """Declare the host of the job's supervisor permanently lost, which this host cannot detect.

        A job on that host ends as lost; a job on other machines gets a supervisor on this host. Raises JobNotRunning if
        the job has ended, JobStillRunning if its supervisor has responded recently.
        """
        if self.view().state.ended:
            raise JobNotRunning(f"Job {self.id} has ended ({self.state.value}).", code="nothing-to-declare-lost")
        supervisor = self.folder.read_supervisor()
        if supervisor.is_held or (supervisor.host and not supervisor.is_silent):
            description = supervisor.describe() if supervisor.host else "Its supervisor is running."
            raise JobStillRunning(
                f"Job {self.id} is not lost. {description}",
                code="job-not-lost",
                hint=f"Stop it with: distdl stop {short_id(self.id)}",
            )
        if finalize_abandoned(self.folder, lost_supervisor=supervisor if supervisor.host else None):
            # If that supervisor is still alive, it exits as soon as it can read this directory again.
            control.request(self.folder.control, "cancel", now=True)

    def _check_ended(self, remedy: str) -> None:
        """Raise JobStillRunning while the job has not ended, JobNotFound if it was deleted."""
        if not self.folder.path.exists():
            raise JobNotFound(
                f"Job {self.id} no longer exists: its folder was deleted.",
                code="job-folder-deleted",
                hint="Submit the code again.",
            )
        if not self.view().state.ended:
            supervisor = self.folder.read_supervisor()
            hint = (
                f"{supervisor.describe()} {supervisor.get_remedy(self.id)}" if supervisor.is_on_other_host else remedy
            )
            raise JobStillRunning(f"Job {self.id} is still {self.state.value}.", code="result-not-ready", hint=hint)

    def ask_stacks(self) -> None:
        """Request the stack traces of all ranks without waiting; they appear in ``view().stacks``.

        Raises JobNotRunning if no rank has started yet or the job has ended.
        """
        from distdl_jupyter.jobs import rank_requests

        rank_requests.request_stacks(self.folder, self.view())

    def stacks(self, timeout: float = 10.0, *, recorded: bool = False, number: int | None = None) -> StacksDisplay:
        """Return the stack traces of all threads of all ranks; ranks that differ from the others come first.

        The ranks keep running undisturbed, even if they hang in a library. For a job that has ended, or with
        ``recorded``, the last saved traces are returned, or those with this ``number``. Raises JobNotRunning if no
        rank is running and no traces are saved, JobNotFound if those traces are not saved, TimeoutError after
        ``timeout`` seconds.
        """
        from distdl_jupyter.jobs import rank_requests

        if recorded or number is not None:
            return rank_requests.load_stacks(self.folder, number)
        with explain_interrupt(lambda: describe_interrupt(self)):
            return rank_requests.capture_stacks(self.folder, self.view, timeout)

    def ask_profile(self, steps: int = 5, ranks: Sequence[int] | None = None) -> None:
        """Request a profile of the next ``steps`` steps without waiting; ``view().profiles`` shows its progress.

        Raises InvalidSpec, JobNotRunning.
        """
        from distdl_jupyter.jobs import rank_requests

        rank_requests.request_profile(self.folder, self.view(), steps, ranks)

    def profile(
        self,
        steps: int = 5,
        ranks: Sequence[int] | None = None,
        *,
        timeout: float = 120.0,
        recorded: bool = False,
        number: int | None = None,
    ) -> ProfileDisplay:
        """Record the next ``steps`` training steps (1 to 50) of ``ranks``, by default all, with torch's profiler.

        The result is displayed as a table of the slowest operators. ``to_pandas()`` returns all operators. ``traces``
        lists the path of each rank's Chrome trace (open them in https://ui.perfetto.dev). ``save(folder)`` copies the
        traces. The job keeps running, but its steps are slower while they are recorded. A step is one step of a
        torch optimizer.

        For a job that has ended, or with ``recorded``, the last profile is returned, or the one with this ``number``.
        Raises InvalidSpec, JobNotRunning if nothing could be recorded, JobNotFound if that profile is not saved,
        TimeoutError after ``timeout`` seconds.
        """
        from distdl_jupyter.jobs import rank_requests

        if recorded or number is not None:
            return rank_requests.load_profile(self.folder, number)
        with explain_interrupt(lambda: describe_interrupt(self)):
            return rank_requests.record_profile(self.folder, self.view, steps, ranks, timeout)

    def resources(self) -> ResourceTable:
        """Return the resource usage of each rank and its machine, per second: CPU, memory, GPU, disk and network.

        The table shows the latest values; ``to_pandas()`` returns all of them, ``figure()`` plots them. It is empty for
        jobs that ran for less than one second and for jobs on Azure ML.
        """
        from distdl_jupyter.views.resources import ResourceTable

        is_pending = not self.view().state.ended and self.folder.read_spec().cluster != "azureml"
        return ResourceTable(self.folder.resources, is_pending=is_pending)

    def environment(self) -> JobEnvironment:
        """Return the environment of the job: Python and packages of rank 0, and the git state of the code.

        ``print`` shows it as a requirements.txt. It is empty until rank 0 has started.
        """
        return self.folder.read_environment()

    def time(self) -> StepTimesDisplay:
        """Return how the training steps of each rank spent their time so far, in seconds.

        The parts are data, computation, waiting for slower ranks, communication and other; ``straggler`` is the rank
        that the others wait for. The result is displayed as a table; ``to_pandas()`` returns one row per rank and step,
        ``figure()`` plots one bar per rank. The steps are those of torch optimizers; if there are none, ``why`` gives
        the reason.
        """
        return results.read_step_times(self.folder, self.view())

    def tracking(self) -> list[TrackerRecord]:
        """Return the state of each experiment tracker: its run, the URL of the run, and any problem."""
        return tracking.read_records(self.folder.path)

    def track(self, trackers: str | Sequence[str] = "", *, timeout: float | None = 600.0) -> list[TrackerRecord]:
        """Send the metrics of this job, running or ended, to experiment trackers and return the state of each.

        ``trackers`` are "mlflow", "tensorboard" and "wandb" ("" for those of the job). A job has one run in each
        tracker, even if this is called several times. Returns when the trackers have everything of an ended job or
        report a problem, or after ``timeout`` seconds. Raises InvalidSpec.
        """
        with explain_interrupt(lambda: describe_interrupt(self)):
            return results.track(self.folder, trackers, timeout)

    def rerun(self, **options: Any) -> Job:
        """Start a new job with the same code and captured values, from the beginning, and return its handle.

        ``options`` replace those of this job: ``job.rerun(process_count_per_node=4)``. Secret environment variables are
        not stored with a job; they are read from ``options`` or the environment of this process. Raises InvalidSpec if
        one is missing or an option is wrong, PluginUnavailable, JobNotFound if the files of the job were deleted.
        """
        return start(*rerun.prepare_rerun(self.folder, options))

    def move(self, compute_target: str, **options: Any) -> Job:
        """Move this queued job to another cluster and return the new handle.

        ``options`` replace those of this job, as in ``rerun``. The job leaves its queue first, so it never runs twice;
        a job that starts at the same moment stays where it is. Raises JobNotRunning if the job is no longer queued,
        InvalidSpec if an option is wrong or a secret is missing, PluginUnavailable, JobNotFound if the files of the job
        were deleted; after these errors the job is still queued.
        """
        spec, secrets, code = rerun.prepare_move(self.folder, {**options, "compute_target": compute_target})
        with control.exclusive_lock(self.folder.control):  # so that only one of two processes moves it
            self._check_queued()
            return start(spec, secrets, code, lambda: self._leave_queue(compute_target))

    def _check_queued(self) -> None:
        if (view := self.view()).state is not State.QUEUED:
            raise make_not_queued_error(self.id, view.state)

    def _leave_queue(self, compute_target: str) -> None:
        self._check_queued()
        reason = f"{MOVED_PREFIX}{compute_target}."
        self.cancel(reason=reason)
        view = self.wait().view()
        if view.started is not None or view.reason != reason:
            raise make_not_queued_error(self.id, view.state)

    def resume(self, **options: Any) -> Job:
        """Resume this ended job from its checkpoints as a new job, and return a handle to it.

        The new job runs the same code with the same values, and its ``checkpoint_dir()`` contains the files of this
        job. ``options`` replace those of this job, for example ``job.resume(process_count_per_node=4)``. Secret
        environment variables are read from ``options`` or the environment of this process.

        Raises JobStillRunning, InvalidSpec if this job saved no checkpoint or an option is wrong, PluginUnavailable,
        JobNotFound if the files of the job were deleted.
        """
        self._check_ended("Cancel it before resuming it.")
        return start(*rerun.prepare_resume(self.folder, options))

    def checkpoints(self) -> CheckpointList:
        """Return the checkpoints in ``checkpoint_dir()``, newest first.

        Each has ``step``, ``metrics`` (means over all ranks at that step), ``size`` in bytes, ``modified``,
        ``location`` and ``load_code``. Sharded checkpoints are listed as one. The list is displayed as a table.
        """
        from distdl_jupyter.views.job_page import CheckpointList

        reader = JobReader(self.folder, curves=True)
        reader.curves = checkpoints.read_inherited_curves(self.folder)
        reader.catch_up()
        return CheckpointList(checkpoints.find_all(self.folder, reader.curves))

    def fork(self, step: float | None = None, path: str | None = None, **options: Any) -> Job:
        """Start a new job that continues from one checkpoint of this job, and return its handle.

        The checkpoint is the newest one, or the one with a ``step`` or ``path`` of ``checkpoints()``. This job is not
        changed and may still be running. ``options`` replace those of this job, as in ``resume``.

        Raises InvalidSpec if the checkpoint does not exist or an option is wrong, PluginUnavailable, JobNotFound if the
        files of the job were deleted.
        """
        return start(*rerun.prepare_resume(self.folder, options, checkpoints.choose(self.checkpoints(), step, path)))

    def remove(self) -> None:
        """Delete the folder of the job with its log and values.

        For a check, the run on one process is deleted too. Raises JobStillRunning if the job has not ended, and
        DiskRefused.
        """
        self._check_ended("Cancel it before removing it.")
        if self.spec.check:
            self._remove_run_on_one_process()
        JobStore(self.folder.path.parent.parent).remove(self.folder)

    def _remove_run_on_one_process(self) -> None:
        from distdl_jupyter.core import correctness  # lazy: few jobs are checks

        with contextlib.suppress(JobNotFound):
            single_run = attach(correctness.read_single_run_id(self.folder.path))
            if single_run.spec.check.get("replay") == str(self.folder.path):  # confirm that it belongs to this check
                single_run.remove()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.folder.path == self.folder.path

    def __hash__(self) -> int:
        return hash(self.folder.path)

    def __repr__(self) -> str:
        job = self._ended_row or self.view()
        processes = plural(job.node_count * job.process_count_per_node, "process")
        return f"<Job {self.id} {self.name!r} {job.state}, {processes}>"

    def _ipython_display_(self) -> None:
        # This method also works in a restarted kernel without %load_ext.
        from distdl_jupyter.jobs.output import show

        show(self)


class Jobs(list[Job]):
    """A list of jobs, newest first, that is displayed as a table."""

    def table(self) -> JobTable:
        """Return a new table of the jobs."""
        from distdl_jupyter.jobs import study_rows

        ids = {job.id for job in self}
        return JobTable(study_rows.fold_rows([row for row in list_rows() if row.id in ids]))

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def jobs() -> Jobs:
    """Return all jobs in the data directory of this user, newest first."""
    ended = {id_: entry.row for id_, entry in job_list.get_index().read_ended().items()}
    return Jobs(Job(folder, ended.get(folder.id)) for folder in JobStore().list_folders())


def list_rows() -> list[JobRow]:
    """Return the rows of the job list, newest first; fast for a thousand jobs."""
    return [entry.row for entry in job_list.get_index().read_all()]


def describe_not_started() -> str:
    """Return the message for an interrupt before the start."""
    return "Interrupted before the start. No job was started."


def describe_interrupt(job: Job, command: str = "") -> str:
    """Return the message for an interrupt that leaves the job running; ``command`` precedes its id."""
    id_ = short_id(job.id)
    return format_interrupt(
        f"job {job.name} ({id_})", job.state, f"{command} {id_}" if command else f"attach({id_!r}).cancel()"
    )


def format_interrupt(subject: str, state: State, command: str) -> str:
    """Return the message for an interrupt that leaves a job or sweep unchanged; ``command`` stops it."""
    if state.ended:
        return f"Interrupted; {subject} has ended ({state.value})."
    return f"Interrupted; {subject} is still {state.value}. To stop it, run {command}"


def attach(job_id: str | None = None) -> Job:
    """Return a handle to the job with this id; the last part of an id is enough. The default is the newest job.

    Raises JobNotFound.
    """
    if job_id is None:
        if newest := next(iter(jobs()), None):
            return newest
        raise JobNotFound(
            "There are no jobs yet.", code="no-jobs", hint="Start a cell with %%distributed to start one."
        )
    job = Job(JobStore().find(job_id))
    job.spec  # noqa: B018 - a folder without a spec is not a job
    return job


def submit(
    function: Callable[..., Any] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    entry_script: str | None = None,
    source_directory: str = ".",
    script_params: Mapping[str, Any] | None = None,
    **options: Any,
) -> Job:
    """Run a function or a script on every rank, and return a handle to the job immediately.

    ``options`` are the options of all jobs (the fields of ``core.options.JobOptions``, such as ``node_count`` and
    ``process_count_per_node``; see ``distdl submit --help``), those of the backend and of the cluster, and their
    aliases.

    Raises InvalidSpec, PluginUnavailable, DataUnavailable and DiskRefused before anything is started.
    """
    from distdl_jupyter import capture

    if (function is None) == (entry_script is None):
        raise InvalidSpec(
            "submit() needs either a function or entry_script='train.py'.",
            code="submit-nothing",
            field="function",
        )
    if entry_script is not None:
        draft = capture.capture_script(entry_script, source_directory, script_params or {})
    else:
        assert function is not None
        draft = capture.capture_function(function, tuple(args), dict(kwargs or {}))
    return launch(draft, **options)


def launch(
    draft: CapturedCode, group: Group | None = None, *, check: Mapping[str, Any] | None = None, **options: Any
) -> Job:
    """Create a job from captured code and start its supervisor; with ``check``, record its first steps.

    ``group`` is the study that the job belongs to.

    Raises InvalidSpec, PluginUnavailable, DiskRefused, LaunchFailed.
    """
    from distdl_jupyter.jobs import jobspec  # lazy: reading jobs needs neither capture nor checks

    with explain_interrupt(describe_not_started):
        spec, secret_values = jobspec.build(draft, options, id_=create_id(), group=group)
    return start(dataclasses.replace(spec, check=dict(check or {})), secret_values, draft)


def relaunch(job: Job, *, group: Group | None = None, check: Mapping[str, Any] | None = None, **options: Any) -> Job:
    """Start a job with the code of an earlier job and other options; ``group`` and ``check`` as in ``launch``.

    Raises InvalidSpec, PluginUnavailable, JobNotFound if the job's files were deleted.
    """
    return start(*rerun.prepare_rerun(job.folder, options, group=group, check=dict(check or {})))


def start(
    spec: JobSpec, secret_values: Mapping[str, str], code: Code, before_start: Callable[[], None] | None = None
) -> Job:
    """Write a job's folder and start its supervisor; ``before_start`` as in ``publish``."""
    from distdl_jupyter import warm

    def begin(folder: JobFolder, lock: JobLock) -> None:
        warm.start_job(folder, lock, secret_values, python=spec.python)

    return Job(publish(JobStore(), spec, code, begin, lambda id_: describe_interrupt(attach(id_)), before_start))


def publish(
    store: JobStore,
    spec: JobSpec,
    code: Code,
    start: Callable[[JobFolder, JobLock], object],
    describe_started: Callable[[str], str],
    before_start: Callable[[], None] | None = None,
) -> JobFolder:
    """Write the folder of a job or sweep, and ``start`` its process, which inherits the lock.

    ``before_start`` is called when the folder is complete but still hidden, and may raise.

    An interrupt before the start leaves no files behind. An interrupt during the start is raised after the start has
    succeeded, with the message of ``describe_started``. Raises DiskRefused, LaunchFailed; neither leaves files behind.
    """
    with explain_interrupt(describe_not_started), files.explain_disk_errors(store.jobs):
        store.clean_up()
        spec, folder = _prepare_folder(store, spec)
    lock = None
    try:
        with explain_interrupt(describe_not_started):
            lock = JobLock.acquire_new(folder.lock)
            code.write(folder)
            folder.spec_file.write_text(spec.dumps(), encoding="utf-8")
            _write_first_events(folder, spec, code)
            if before_start is not None:
                before_start()
        with explain_interrupt(lambda: describe_started(spec.id)), machine.delay_interrupt():
            folder = store.publish(folder)
            start(folder, lock)
    except BaseException as error:
        if lock is not None:
            lock.release()
        store.discard(folder, is_published=isinstance(error, OSError | LaunchFailed))
        if isinstance(error, OSError):
            raise files.make_disk_error(error, store.jobs) from error
        raise
    return folder


def _prepare_folder(store: JobStore, spec: JobSpec) -> tuple[JobSpec, JobFolder]:
    """Return the spec with a new unique id that sorts after all existing ids, and the job's hidden folder."""
    while True:
        spec = dataclasses.replace(spec, id=store.advance_id(spec.id))
        try:
            return spec, store.prepare(spec.id)
        except FileExistsError:
            if not store.jobs.is_dir():
                raise
            spec = dataclasses.replace(spec, id=create_id())


def _write_first_events(folder: JobFolder, spec: JobSpec, code: Code) -> None:
    writer = EventWriter(folder.events)
    try:
        writer.write("state", state=State.QUEUED.value, reason="")
        writer.write("phase", phase="capture", detail=code.format_heading(), seconds=round(spec.capture_seconds, 3))
        if spec.captured:
            writer.write("log", rank=None, stream="sys", text=redact.mask_text(f"Captured {code.format_summary()}"))
        for finding in spec.findings:
            if finding.get("level") in ("warning", "error"):
                text = format_finding(finding)
                writer.write("note", level=finding["level"], text=text, code=finding.get("code", ""))
    finally:
        writer.close()


class DistributedFunction:
    """A function with job options: calling it runs it in this process, ``submit`` runs it as a job."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function = function
        self._options = options
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function once in this process."""
        return self._function(*args, **kwargs)

    def submit(self, *args: Any, **kwargs: Any) -> Job:
        """Run the function with these arguments on every rank, and return a handle to the job immediately."""
        return submit(self._function, args, kwargs, **self._options)

    def options(self, **options: Any) -> DistributedFunction:
        """Return the same function with changed options."""
        return DistributedFunction(self._function, override(self._options, options))


def distributed(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorate a function: with ``@distributed(process_count_per_node=2)``, ``train.submit(...)`` returns a Job."""
    if function is not None:
        return DistributedFunction(function, options)
    return functools.partial(distributed, **options)
