"""``python -m distdl_jupyter.studies.sweep_driver FOLDER LOCK_FD``: start the trials of a sweep, prune bad ones early.

It is started like the supervisor of a job, and outlives kernel, server and terminal. Standard input contains one JSON
line with the values of secret environment variables. All its state is in files, so it may be killed at any time and
another driver continues:

* a trial is written to Optuna's storage before its job starts, and the job names the trial: a new driver starts trials
  without a job and follows those with one;
* the result of a trial is read from its job.

A trial that was lost with its machine has no result; its values are queued again as another trial.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from distdl_jupyter.core import machine, space
from distdl_jupyter.core.errors import DistDLError, JobFailed, JobNotFound, JobNotRunning
from distdl_jupyter.core.events import State
from distdl_jupyter.core.humanize import listing, plural, short_id
from distdl_jupyter.core.space import PRUNED_PREFIX, STOP_REASON, SweepPlan, get_comparison_points
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.jobs import client, rerun
from distdl_jupyter.jobs.reader import JobReader
from distdl_jupyter.jobs.study_rows import record_end
from distdl_jupyter.studies import sweep_study
from distdl_jupyter.supervisor.control import ControlReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import optuna

    from distdl_jupyter.core.view import JobView

#: Seconds between two polls of the trials.
_POLL_SECONDS = 0.5
#: Number of failures after which the sweep ends: of all failed trials while none has completed or been pruned, then of
#: trials in a row whose ranks did not start.
_MAX_FAILURES = 3
#: Number of lost trials in a row after which the sweep ends. Trials that were lost together count once.
_MAX_LOSSES = 3
#: Completed trials before any trial is pruned. With ``prune_after``, the median needs at most a quarter of all trials.
_MIN_TRIALS = 5
#: The TPE sampler draws a third of the trials at random before it uses results: at least 3, at most this many.
_MAX_RANDOM_TRIALS = 10
#: Share of its steps that a trial makes before it may be pruned, unless ``prune_after`` is set.
_MIN_SHARE = 0.1
SAMPLERS = ("tpe", "random", "grid", "qmc", "gp")
PRUNERS = ("median", "halving", "hyperband", "none")


def make_search(plan: SweepPlan, seed: int | None) -> tuple[optuna.samplers.BaseSampler, optuna.pruners.BasePruner]:
    """Return Optuna's sampler and pruner for a plan. Raises InvalidSpec, ImportError if a package is missing."""
    import optuna

    if plan.sampler == "grid":
        values = {
            name: [*domain.values]
            if isinstance(domain, space.Choice)
            else [*range(int(domain.low), int(domain.high) + 1)]
            for name, domain in plan.parameters.items()
        }

    class GridSampler(optuna.samplers.GridSampler):
        def after_trial(self, *_: object) -> None:
            """Do nothing: Optuna's method stops Optuna's trial loop, which is not used here."""

    startup = min(_MAX_RANDOM_TRIALS, max(3, plan.trials // 3))
    samplers: dict[str, Callable[[], optuna.samplers.BaseSampler]] = {
        "tpe": lambda: optuna.samplers.TPESampler(n_startup_trials=startup, constant_liar=plan.parallel > 1, seed=seed),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
        "grid": lambda: GridSampler(values, seed=plan.seed or 0),
        "qmc": lambda: optuna.samplers.QMCSampler(seed=plan.seed or 0, warn_independent_sampling=False),
        "gp": lambda: optuna.samplers.GPSampler(seed=seed),
    }
    min_steps = plan.prune_after or 0
    pruners: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
        "median": lambda: optuna.pruners.MedianPruner(
            n_startup_trials=_MIN_TRIALS if plan.prune_after is None else min(_MIN_TRIALS, max(1, plan.trials // 4)),
            n_warmup_steps=min_steps,
        ),
        "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=max(1, min_steps)),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(min_resource=max(1, min_steps)),
        "none": optuna.pruners.NopPruner,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # some samplers are experimental
        return samplers[plan.sampler](), pruners[plan.pruner]()


def to_distributions(parameters: space.Space) -> dict[str, optuna.distributions.BaseDistribution]:
    """Return Optuna's distributions for a search space."""
    import optuna.distributions as dist

    def to_optuna(domain: space.Range | space.Choice) -> dist.BaseDistribution:
        if isinstance(domain, space.Choice):
            return dist.CategoricalDistribution(domain.values)
        if domain.whole:
            return dist.IntDistribution(int(domain.low), int(domain.high), log=domain.log)
        return dist.FloatDistribution(domain.low, domain.high, log=domain.log)

    return {name: to_optuna(domain) for name, domain in parameters.items()}


@dataclass(slots=True)
class _RunningTrial:
    """A trial whose job has not ended yet."""

    trial: optuna.Trial
    reader: JobReader
    #: The last step reported to Optuna.
    step: int = -1
    is_pruned: bool = field(default=False)


def _open_storage(folder: JobFolder) -> optuna.storages.JournalStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(folder.path / "journal.log")))


def load_stored_study(folder: JobFolder) -> optuna.Study | None:
    """Return the study in the journal of a sweep's folder, or None if it does not exist."""
    import optuna

    if not (folder.path / "journal.log").exists():
        return None
    storage = _open_storage(folder)
    names = optuna.study.get_all_study_names(storage)
    return optuna.load_study(study_name=names[0], storage=storage) if names else None


class Driver:
    """Runs one sweep from its current state to its end."""

    def __init__(self, folder: JobFolder, secrets: Mapping[str, str]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._folder, self._secrets = folder, secrets
        self._spec = folder.read_spec()
        assert self._spec.group is not None
        self._id, self._plan = self._spec.group.id, SweepPlan.from_group(self._spec.group)
        self._control = ControlReader(folder.control, folder.lock)
        # A driver that was killed while writing leaves this lock behind; the sweep's own lock excludes other writers.
        (folder.path / "journal.log.lock").unlink(missing_ok=True)
        storage = _open_storage(folder)
        names = optuna.study.get_all_study_names(storage)
        count = len(storage.get_all_trials(storage.get_study_id_from_name(names[0]), deepcopy=False)) if names else 0
        # A restarted sampler with the same seed would repeat the values of its first trials.
        seed = None if self._plan.seed is None else self._plan.seed + count
        sampler, pruner = make_search(self._plan, seed)
        self._study = optuna.create_study(
            storage=storage,
            sampler=sampler,
            pruner=pruner,
            study_name=names[0] if names else self._spec.name,
            direction="maximize" if self._plan.maximize else "minimize",
            load_if_exists=True,
        )
        self._distributions = to_distributions(self._plan.parameters)
        self._running: dict[int, _RunningTrial] = {}
        #: Number of trials lost in a row, each started after the previous loss.
        self._losses = 0
        #: Time of the last loss in epoch seconds.
        self._lost_at = 0.0
        #: Number of trials in a row that failed before their ranks started.
        self._start_failures = 0

    def run(self) -> State:
        """Start, follow and stop trials until all are done, or the sweep is stopped. Raises DistDLError."""
        self._resume_trials()
        while True:
            if not self._folder.path.exists():
                return State.CANCELED  # running trials are separate jobs and continue
            if any(request["type"] == "cancel" for request in self._control.read()):
                self._stop()
                return State.CANCELED
            for number, running in [*self._running.items()]:
                self._update(number, running)
            self._start_more()
            if not self._running:
                return State.COMPLETED
            time.sleep(_POLL_SECONDS)

    def _resume_trials(self) -> None:
        """Follow the trials of an earlier driver, and start the trials that it had created but not started."""
        import optuna

        jobs = sweep_study.map_trials(sweep_study.list_rows(self._id))
        trials = self._study.get_trials(deepcopy=False)
        if jobs and max(jobs) >= len(trials):
            raise JobFailed(
                "The sweep cannot continue because its file journal.log is missing or was changed.",
                code="sweep-journal-changed",
                hint="Its trials are kept. Start a new sweep for more.",
            )
        for frozen in trials:
            if frozen.state is not optuna.trial.TrialState.RUNNING:
                continue
            trial = optuna.trial.Trial(self._study, frozen._trial_id)  # noqa: SLF001 - Optuna has no public way
            row = jobs.get(frozen.number)
            if row is None:
                self._launch(trial)
            else:
                self._follow(trial, JobStore().get_folder(row.id), max(frozen.intermediate_values, default=-1))

    def _start_more(self) -> None:
        while len(self._running) < self._plan.parallel and self._count_started() < self._plan.trials:
            self._launch(self._study.ask(self._distributions))

    def _count_started(self) -> int:
        """Return the number of started trials that were not lost."""
        import optuna

        waiting = optuna.trial.TrialState.WAITING
        trials = self._study.get_trials(deepcopy=False)
        return sum(trial.state is not waiting and not trial.user_attrs.get("lost") for trial in trials)

    def _launch(self, trial: optuna.Trial) -> None:
        values = {name: trial.params[name] for name in self._plan.parameters}
        job = client.start(*rerun.prepare_trial(self._folder, trial.number, values, self._secrets))
        trial.set_user_attr("job", job.id)
        self._follow(trial, job.folder)

    def _follow(self, trial: optuna.Trial, folder: JobFolder, step: int = -1) -> None:
        self._running[trial.number] = _RunningTrial(trial, JobReader(folder, curves=True), step)

    def _update(self, number: int, running: _RunningTrial) -> None:
        try:
            view = running.reader.catch_up()
        except JobNotFound:  # the user deleted the job, so the trial is not repeated
            self._finish(number, None)
            return
        self._report_values(running, ended=view.state.ended)
        if not view.state.ended:
            return
        if view.state is State.LOST:
            self._handle_loss(number, running)
            return
        self._losses = 0
        never_started = view.state is State.FAILED and view.started is None and view.failure is None
        self._start_failures = self._start_failures + 1 if never_started else 0
        if view.state is State.COMPLETED:
            self._finish(number, self._find_final_value(running))
        elif view.state is State.CANCELED and view.reason.startswith(PRUNED_PREFIX):
            self._finish(number, None, pruned=True)
        elif view.state is State.CANCELED and view.reason == STOP_REASON:
            self._requeue(number, running)
        else:
            self._finish(number, None)
            self._check_failures(view)

    def _report_values(self, running: _RunningTrial, *, ended: bool) -> None:
        """Report a trial's new values to Optuna, and stop the trial if Optuna prunes it."""
        if self._plan.metric not in running.reader.curves.metrics:
            return
        rows = running.reader.curves.get(self._plan.metric).get_band().rows
        is_single = running.reader.view.process_count == 1
        for step, value in get_comparison_points(rows, running.step, complete=is_single or ended):
            running.trial.report(value, step)
            running.step = step
            if not ended and not running.is_pruned and self._can_prune(running) and running.trial.should_prune():
                self._prune(running, int(rows[-1].step))

    def _can_prune(self, running: _RunningTrial) -> bool:
        """Return whether trials may be pruned yet: early differences may be noise."""
        if self._plan.prune_after is not None:
            return True
        import optuna

        finished = self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        if len(finished) < _MIN_TRIALS:
            return False
        view = running.reader.view
        if view.total and view.done is not None:
            return view.done >= _MIN_SHARE * view.total
        lengths = sorted(max(trial.intermediate_values, default=0) for trial in finished)
        return running.step >= _MIN_SHARE * lengths[len(lengths) // 2]

    def _prune(self, running: _RunningTrial, last_step: int) -> None:
        """Prune a trial whose last reported step is ``last_step``."""
        running.is_pruned = True
        comparison = "not among the best"
        if self._plan.pruner == "median":
            comparison = f"{'lower' if self._plan.maximize else 'higher'} than the median"
        reason = f"{comparison} at step {running.step}" + (
            f", stopped at step {last_step}" if last_step > running.step else ""
        )
        with contextlib.suppress(JobNotRunning):
            client.Job(running.reader.folder).cancel(reason=PRUNED_PREFIX + reason)

    def _find_final_value(self, running: _RunningTrial) -> float | None:
        """Return the final metric of a trial, or None if it is not finite. Raises JobFailed if it was not reported."""
        store, metric = running.reader.curves, self._plan.metric
        if metric in store.metrics:
            value = store.get(metric).get_band().last
            return value if value is not None and math.isfinite(value) else None
        self._finish(running.trial.number, None)
        self._stop()
        metrics = listing([repr(name) for name in store.metrics])
        reported = f"It reported {metrics}." if metrics else "It reported no metrics."
        alternative = f", or use another metric: metric={next(iter(store.metrics))!r}" if metrics else ""
        raise JobFailed(
            f"Trial {running.trial.number} ended without reporting {metric!r}. {reported}",
            code="sweep-metric-missing",
            hint=f"Report it in the training code: distdl_jupyter.log({metric}=...){alternative}.",
        )

    def _finish(self, number: int, value: float | None, *, pruned: bool = False) -> None:
        import optuna

        running = self._running.pop(number, None)
        if running is None:
            return
        if value is not None:
            self._study.tell(running.trial, value)
        elif pruned and running.step >= 0:
            self._study.tell(running.trial, state=optuna.trial.TrialState.PRUNED)
        else:
            self._study.tell(running.trial, state=optuna.trial.TrialState.FAIL)

    def _handle_loss(self, number: int, running: _RunningTrial) -> None:
        if running.reader.spec.created > self._lost_at:  # otherwise it was lost together with the previous one
            self._losses, self._lost_at = self._losses + 1, time.time()
        self._requeue(number, running)
        if self._losses >= _MAX_LOSSES:
            self._stop()
            raise JobFailed(
                f"{_MAX_LOSSES} trials in a row were lost: {running.reader.view.reason}",
                code="sweep-trials-lost",
                hint=f"distdl logs {short_id(running.reader.folder.id)} shows the last one.",
            )

    def _requeue(self, number: int, running: _RunningTrial) -> None:
        """Queue a new trial with the values of a trial that has no result."""
        values = {name: running.trial.params[name] for name in self._plan.parameters}
        running.trial.set_user_attr("lost", True)  # noqa: FBT003 - positional in Optuna
        self._finish(number, None)
        self._study.enqueue_trial(values)

    def _check_failures(self, view: JobView) -> None:
        """Raise JobFailed if too many trials failed and none succeeded, or if the last ones could not start."""
        study = sweep_study.read(self._id)
        failed = [trial for trial in study.trials if trial.state == State.FAILED]
        has_success = any(trial.state in ("completed", "pruned") for trial in study.trials)
        if (self._start_failures if has_success else len(failed)) < min(_MAX_FAILURES, self._plan.trials):
            return
        cause = (view.failure.what if view.failure else view.reason).splitlines()[0].rstrip(".")
        message = f"The first {plural(len(failed), 'trial')} failed: {cause}."
        if has_success:
            message = f"The last {plural(self._start_failures, 'trial')} could not start: {cause}."
        self._stop()
        raise JobFailed(message, code="sweep-trials-failed", hint=f"distdl logs {short_id(failed[-1].id)} shows why.")

    def _stop(self) -> None:
        """Cancel the running trials and wait until they have ended."""
        jobs = [client.Job(running.reader.folder) for running in self._running.values()]
        for job in jobs:
            with contextlib.suppress(DistDLError):
                job.cancel(reason=STOP_REASON)
        for job in jobs:
            with contextlib.suppress(DistDLError):
                job.wait()
        for number, running in [*self._running.items()]:
            self._update(number, running)


def main() -> None:
    """Drive the sweep, and record how it ended."""
    machine.reset_signals()
    os.set_inheritable(int(sys.argv[2]), False)  # noqa: FBT003 - the lock stays here, no job may hold it
    folder = JobFolder(Path(sys.argv[1]))
    secrets = json.loads(sys.stdin.readline() or "{}")
    remedy = f"distdl sweep --resume {short_id(folder.id)}"
    try:
        record_end(folder, Driver(folder, secrets).run())
    except DistDLError as error:
        record_end(folder, State.FAILED, error.message, error.hint or f"Resume it: {remedy}")
    except Exception as error:  # noqa: BLE001 - shown to the user, and its traceback is in the sweep's supervisor.log
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        problem = f"The process that controls the sweep failed: {reason}."
        record_end(folder, State.FAILED, problem, f"See {folder.supervisor_log}. Continue with: {remedy}")


if __name__ == "__main__":
    main()
