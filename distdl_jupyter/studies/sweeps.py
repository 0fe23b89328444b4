"""``sweep(train, {"lr": loguniform(1e-4, 1e-1)}, metric="loss")``: runs many trials of a training to find the best.

The trials are jobs, started by a separate process (``sweep_driver``). So a sweep continues without the kernel, and
``sweep(id)`` opens it in any process.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from distdl_jupyter import capture
from distdl_jupyter.core import files, space
from distdl_jupyter.core.errors import (
    InvalidSpec,
    JobFailed,
    JobNotRunning,
    JobStillRunning,
    PluginUnavailable,
    ResultUnavailable,
    explain_interrupt,
)
from distdl_jupyter.core.events import State
from distdl_jupyter.core.files import JobLock
from distdl_jupyter.core.humanize import short_id
from distdl_jupyter.core.options import MAX_PROCESSES, MAXIMIZED_METRIC
from distdl_jupyter.core.source import parse
from distdl_jupyter.core.space import STOP_REASON, Study, SweepPlan
from distdl_jupyter.core.spec import Group
from distdl_jupyter.core.store import JobFolder, create_id
from distdl_jupyter.jobs import client, jobspec, rerun, study_rows
from distdl_jupyter.studies import sweep_driver, sweep_study
from distdl_jupyter.studies.sweep_driver import PRUNERS, SAMPLERS, make_search
from distdl_jupyter.studies.sweep_study import KIND, SweepTrial
from distdl_jupyter.supervisor import control
from distdl_jupyter.views import sweep as views

if TYPE_CHECKING:
    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.views.sweep import SweepPanel

#: Seconds between two polls of a sweep.
_POLL_SECONDS = 0.3
DEFAULT_TRIALS = 20
#: Options of ``sweep`` that define its plan; the others apply to each trial.
_PLAN_OPTIONS = ("trials", "metric", "maximize", "parallel", "sampler", "pruner", "prune_after", "seed")


class Sweep:
    """A handle to one sweep. It reads the folders of the trials, so it works in any process."""

    def __init__(self, id_: str) -> None:
        self.id = id_

    @property
    def study(self) -> Study:
        """The current state of the sweep and its trials."""
        return sweep_study.read(self.id)

    @property
    def panel(self) -> SweepPanel:
        """The content of the sweep's panel as plain data."""
        return views.make_panel(self.study)

    @property
    def trials(self) -> views.SweepTable:
        """The started trials, best first, with ``number``, ``params``, ``value``, ``state`` and ``job``."""
        return views.SweepTable(self.study)

    @property
    def name(self) -> str:
        """The name of the sweep."""
        return self.study.group.name

    @property
    def state(self) -> State:
        """The current state: lost if the driver of the sweep was killed and cannot be restarted."""
        return self.study.state

    @property
    def best(self) -> SweepTrial:
        """The best completed trial: ``params``, ``value``, ``job``, ``run()``. Raises ResultUnavailable."""
        study = self.study
        if study.best is None:
            details = " ".join(filter(None, (study.problem, study.hint)))
            message = "No trial has completed yet."
            if any(trial.state == "completed" for trial in study.trials):
                message = f"No trial reported a numeric {study.plan.metric}."
            raise ResultUnavailable(message, code="sweep-without-best", hint=details)
        assert isinstance(study.best, SweepTrial)
        return study.best

    def figure(self, kind: Literal["history", "parameters"] = "history") -> Any:
        """Return a plotly Figure by ``optuna.visualization``.

        ``history`` shows the values of the trials in the order of their start, ``parameters`` the parallel coordinates.
        Raises InvalidSpec, PluginUnavailable without Optuna, ResultUnavailable before the first trial or if the folder
        of the sweep was deleted.
        """
        if kind not in ("history", "parameters"):
            raise InvalidSpec(
                f"Unknown figure {kind!r} of a sweep. Use one of: history, parameters.",
                code="figure-unknown",
                field="kind",
            )
        _check_optuna()
        from optuna.visualization import plot_optimization_history, plot_parallel_coordinate

        study = sweep_driver.load_stored_study(sweep_study.get_folder(self.id))
        if study is None:
            raise ResultUnavailable(
                f"Sweep {self.id} has no stored trials, so there is no figure.", code="sweep-without-trials"
            )
        plot = plot_optimization_history if kind == "history" else plot_parallel_coordinate
        return plot(study, target_name=escape(self.study.plan.metric))

    def wait(self, timeout: float | None = None) -> Sweep:
        """Wait until the sweep has ended, at most ``timeout`` seconds, and return this handle.

        Raises TimeoutError after ``timeout`` seconds, and JobFailed if the sweep cannot continue.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with explain_interrupt(lambda: describe_interrupt(self)):
            while (study := self.study).state is State.RUNNING:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"Sweep {self.id} is still running after {timeout:g} s and continues.")
                time.sleep(_POLL_SECONDS)
        if study.state in (State.FAILED, State.LOST):
            raise JobFailed(study.problem, code="sweep-failed", hint=study.hint)
        return self

    def stop(self) -> Sweep:
        """Cancel the running trials and start no others; ``resume`` continues. Raises JobNotRunning if it has ended."""
        if (state := self.state).ended and state is not State.LOST:
            raise JobNotRunning(
                f"Sweep {self.id} has ended ({state.value}), so it cannot be stopped.", code="sweep-ended"
            )
        folder = sweep_study.get_folder(self.id)
        lock = JobLock.acquire(folder.lock) if folder.path.exists() else None
        if lock is None and folder.path.exists():
            control.request(folder.control, "cancel")
            return self
        try:
            for trial in [trial for trial in self.study.trials if not trial.has_ended]:
                with contextlib.suppress(JobNotRunning):
                    client.attach(trial.id).cancel(reason=STOP_REASON)
            if lock is not None:
                study_rows.record_end(folder, State.CANCELED)
        finally:
            if lock is not None:
                lock.release()
        return self

    def remove(self) -> None:
        """Delete the sweep and its trials with their logs and values. Raises JobStillRunning, DiskRefused."""
        study, folder = self.study, sweep_study.get_folder(self.id)
        if study.state is State.RUNNING or any(not trial.has_ended for trial in study.trials):
            raise JobStillRunning(
                f"Sweep {self.id} is still running.", code="sweep-still-running", hint="Stop it before removing it."
            )
        for row in sweep_study.list_rows(self.id):
            client.attach(row.id).remove()
        if folder.path.exists():
            sweep_study.get_store().remove(folder)

    def resume(self, trials: int | None = None) -> Sweep:
        """Resume a sweep that was stopped, has failed or was killed, optionally with another number of ``trials``.

        Running trials continue, and trials that have ended are not repeated. Raises JobStillRunning, InvalidSpec if a
        secret variable is missing, JobNotFound if the folder of the sweep was deleted.
        """
        folder = sweep_study.get_folder(self.id)
        spec = folder.read_spec()
        secrets, study = rerun.find_secrets(spec), self.study
        limit = space.count_combinations(study.plan.parameters) if study.plan.sampler == "grid" else None
        total = study.plan.trials if trials is None else min(_check_count(trials, "trials"), limit or MAX_PROCESSES)
        if study.state.ended and study.done >= total:
            hint = "" if study.done == limit else f"Use a higher number: resume(trials={2 * study.done})"
            raise JobNotRunning(
                f"All {study.done} trials of sweep {self.id} have ended.", code="sweep-trials-done", hint=hint
            )
        lock = JobLock.acquire(folder.lock)
        if lock is None:
            raise JobStillRunning(f"Sweep {self.id} is already running.", code="sweep-already-resumed")
        try:
            if trials is not None:
                _extend(folder, total)
            study_rows.reopen_sweep(folder)
            control.start_supervisor(folder, lock, secrets, python=spec.python, module=study_rows.DRIVER_MODULE)
        except BaseException:
            lock.release()
            raise
        return self

    def __repr__(self) -> str:
        study = self.study
        return f"<Sweep {self.id} {study.group.name!r} {study.state}, {views.format_count(study)}>"

    def __str__(self) -> str:
        return str(views.make_mime_bundle(self.study)["text/plain"])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return views.make_mime_bundle(self.study)


def sweep(
    function: Callable[..., Any] | str | None = None,
    parameters: Mapping[str, Any] | None = None,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    entry_script: str | None = None,
    source_directory: str = ".",
    script_params: Any = None,
    trials: int | None = None,
    metric: str = "loss",
    maximize: bool | None = None,
    parallel: int = 1,
    sampler: str = "tpe",
    pruner: str = "median",
    prune_after: int | None = None,
    seed: int | None = None,
    **options: Any,
) -> Sweep:
    """Run a training function or a script with many parameter values to find the best ones, and return immediately.

    ``parameters`` maps each parameter to its values: ``{"lr": loguniform(1e-4, 1e-1), "width": [64, 128]}``. They are
    passed to a function in addition to ``args`` and ``kwargs``, and to a script as flags. ``metric`` is a metric that
    the training reports; its last mean over the ranks is compared. ``maximize`` is True if a higher value is better
    (default: derived from the name of the metric).

    At most ``parallel`` trials run at the same time, and ``trials`` in total (default 20; with the sampler "grid", all
    combinations). ``sampler`` is tpe, random, grid, qmc or gp. ``pruner`` stops bad trials early: median, halving,
    hyperband or none, at or after step ``prune_after`` (None: after 10 % of a trial, once 5 trials have finished).
    ``options`` are those of ``submit``, for each trial.

    ``sweep(id)`` returns an existing sweep by its id or the last part of it, ``sweep()`` the newest one.

    Raises InvalidSpec, PluginUnavailable without Optuna, and the errors of ``submit``.
    """
    if (function is None and entry_script is None and parameters is None) or isinstance(function, str):
        return Sweep(sweep_study.find_id(str(function or "")))
    search_space = space.check_space(parameters)
    if (function is None) == (entry_script is None):
        raise InvalidSpec(
            "sweep() needs either a function, or entry_script='train.py'.", code="sweep-nothing", field="function"
        )
    if function is not None:
        draft = capture.capture_function(
            function, tuple(args), {**(kwargs or {}), **space.get_first_values(search_space)}
        )
    else:
        draft = capture.capture_script(str(entry_script), source_directory, script_params or {})
    return sweep_draft(
        draft,
        search_space,
        trials=trials,
        metric=metric,
        maximize=maximize,
        parallel=parallel,
        sampler=sampler,
        pruner=pruner,
        prune_after=prune_after,
        seed=seed,
        **options,
    )


def sweep_draft(draft: CapturedCode, parameters: space.Space, **options: Any) -> Sweep:
    """Run ``sweep`` for captured code; ``options`` are those of ``sweep``."""
    plan_options = {"metric": "loss", **{name: options.pop(name) for name in _PLAN_OPTIONS if name in options}}
    trials, maximize = plan_options.pop("trials", None), plan_options.pop("maximize", None)
    flags = {} if draft.kind == "function" else _map_flags(draft, parameters)
    domains = {name.lstrip("-").replace("-", "_"): domain for name, domain in parameters.items()}
    combinations = space.count_combinations(domains)
    is_grid = plan_options.get("sampler") == "grid"
    if is_grid and combinations is None:
        raise InvalidSpec(
            "The sampler grid needs lists or integers, because a continuous range has infinitely many values.",
            code="sampler-grid",
            field="sampler",
            hint="Use lists, or another sampler.",
        )
    count = _check_count(trials if trials is not None else combinations if is_grid else DEFAULT_TRIALS, "trials")
    plan = SweepPlan(
        parameters=domains,
        trials=min(count, combinations or MAX_PROCESSES) if is_grid else count,
        maximize=bool(MAXIMIZED_METRIC.search(plan_options["metric"])) if maximize is None else maximize,
        flags=flags,
        **plan_options,
    )
    _check_count(plan.parallel, "parallel")
    _check_plan(plan)
    name = str(options.pop("name", draft.name))
    group = Group(kind=KIND, id=create_id(), name=name, size=plan.trials, plan=dataclasses.asdict(plan))
    with explain_interrupt(client.describe_not_started):
        spec, secrets = jobspec.build(draft, {**options, "name": name}, id_=group.id, group=group)

    def start(folder: JobFolder, lock: JobLock) -> None:
        control.start_supervisor(folder, lock, secrets, python=spec.python, module=study_rows.DRIVER_MODULE)

    def describe_started(id_: str) -> str:
        return describe_interrupt(Sweep(id_))

    return Sweep(client.publish(sweep_study.get_store(), spec, draft, start, describe_started).id)


def _extend(folder: JobFolder, trials: int) -> None:
    spec = folder.read_spec()
    assert spec.group is not None
    group = dataclasses.replace(spec.group, size=trials, plan={**spec.group.plan, "trials": trials})
    files.write_json(folder.spec_file, dataclasses.replace(spec, group=group).to_json())


def _check_count(value: Any, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PROCESSES:
        raise InvalidSpec(
            f"{field} must be an integer of at least 1, not {value!r}.", code="sweep-number-invalid", field=field
        )
    return value


def _check_plan(plan: SweepPlan) -> None:
    """Check the plan before anything is started. Raises InvalidSpec, PluginUnavailable."""
    for field, names in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        if getattr(plan, field) not in names:
            raise InvalidSpec(
                f"{field} must be one of {', '.join(names)}, not {getattr(plan, field)!r}.",
                code="sweep-choice-unknown",
                field=field,
            )
    value: Any = plan.metric
    if not isinstance(value, str) or not value:
        raise InvalidSpec(
            "metric must be the name of a metric that the training code reports.",
            code="sweep-metric-invalid",
            field="metric",
            hint='Use a name that the code passes to log(), for example metric="val_loss".',
        )
    value = plan.prune_after
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InvalidSpec(
            f"prune_after must be an integer of at least 0, not {plan.prune_after!r}.",
            code="prune-after-invalid",
            field="prune_after",
        )
    _check_optuna()
    try:
        make_search(plan, plan.seed)
    except ImportError as error:
        raise PluginUnavailable(
            f"The sampler {plan.sampler} needs {error.name}, which is not installed.",
            code="sampler-package-missing",
            hint=f"Run pip install {error.name}, or choose another sampler.",
        ) from None


def _check_optuna() -> None:
    if importlib.util.find_spec("optuna") is None:
        raise PluginUnavailable(
            "A sweep needs Optuna, which is not installed.",
            code="optuna-missing",
            hint="Install it: pip install 'distdl-jupyter[sweep]'",
        )


def _map_flags(draft: CapturedCode, parameters: space.Space) -> dict[str, str]:
    """Return the flag of each parameter of a script, and of each parameter of a cell that is not a variable.

    Raises InvalidSpec for a parameter that would have no effect.
    """
    if draft.kind == "script":
        return dict(_find_flag(draft, name) for name in parameters)
    tree = parse(draft.source.code)
    lines = {
        node.id: node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    read_names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    used_names = (read_names | {variable.name for variable in draft.captured}) - lines.keys()
    return dict(_find_flag(draft, name, lines.get(name)) for name in parameters if name not in used_names)


def _find_flag(draft: CapturedCode, name: str, line_number: int | None = None) -> tuple[str, str]:
    """Return a parameter's name and its flag, spelled as the user did, else as the code does.

    ``line_number`` is the line in which a cell sets the name. Raises InvalidSpec.
    """
    spellings = [name] if name.startswith("-") else [f"--{name}", f"--{name.replace('_', '-')}"]
    matches = [spelling for spelling in spellings if any(spelling in text.text for text in draft.texts)]
    if matches or name.startswith("-"):
        return name.lstrip("-").replace("-", "_"), (matches or spellings)[0]
    if draft.kind == "script":
        raise InvalidSpec(
            f"Option {spellings[0]} was not found in {draft.name}.py.",
            code="parameter-not-a-flag",
            field="parameters",
            hint="Check the spelling. If the script does accept the option, name the parameter with its dashes: "
            f'"--{name}".',
        )
    if line_number is not None:
        line = line_number + draft.source.first_line - 1
        raise InvalidSpec(
            f"Line {line} of the cell sets {name}, which overrides the value of the trial.",
            code="parameter-set-in-cell",
            field="parameters",
            hint="Remove that assignment. Each trial sets its own value.",
        )
    raise InvalidSpec(
        f"The cell does not use {name}.",
        code="parameter-not-used",
        field="parameters",
        hint=f"Use {name} in the cell. Each trial sets its own value.",
    )


def describe_interrupt(sweep: Sweep, stop_command: str = "") -> str:
    """Return the message for an interrupt that leaves the sweep running; ``stop_command`` precedes its id."""
    id_ = short_id(sweep.id)
    command = f"{stop_command} {id_}" if stop_command else f"sweep({id_!r}).stop()"
    return client.format_interrupt(f"sweep {sweep.name} ({id_})", sweep.state, command)
