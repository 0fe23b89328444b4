"""Creates new jobs from the files of an earlier one: reruns, jobs resumed from checkpoints, moved jobs, trials."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from distdl_jupyter import permissions
from distdl_jupyter.core import checkpoints, events, registry
from distdl_jupyter.core.errors import InvalidSpec, JobNotFound
from distdl_jupyter.core.humanize import plural, size
from distdl_jupyter.core.options import ALIASES, OPTIONS, override
from distdl_jupyter.core.store import JobStore, create_id
from distdl_jupyter.worker import owned

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distdl_jupyter.capture import CapturedCode
    from distdl_jupyter.core.checkpoints import Checkpoint
    from distdl_jupyter.core.spec import JobSpec
    from distdl_jupyter.core.store import JobFolder


#: Errno values of a failed write: the code was read, but could not be copied.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)


class StoredCode:
    """The code of an earlier job, or of a sweep, for a new job.

    ``checkpoints`` selects which of the earlier job's checkpoints are copied. ``parameters`` (variables of the code)
    and ``flags`` (arguments of a script) are the values of a trial.
    """

    def __init__(
        self,
        folder: JobFolder,
        spec: JobSpec,
        *,
        checkpoints: Checkpoint | Literal["all", "none"] = "none",
        parameters: Mapping[str, Any] = MappingProxyType({}),
        flags: Sequence[str] = (),
    ) -> None:
        self._folder, self._spec = folder, spec
        self._checkpoints = checkpoints
        self._parameters, self._flags = parameters, flags

    def write(self, folder: JobFolder) -> None:
        """Copy everything into the folder of the new job.

        The owner of the original files is checked here, because the user owns the copy. Raises JobNotFound if files are
        missing or another user could have written them, InvalidSpec, OSError.
        """
        with self._translate_errors("code"):
            owned.open_own(self._folder.spec_file).close()  # the spec names the interpreter to run
            _copy_checked(self._folder.path / "payload.json", folder.path / "payload.json")
            with contextlib.suppress(FileNotFoundError):
                _copy_checked(self._folder.payload, folder.payload)
            _check_owner(self._folder.code)
            shutil.copytree(self._folder.code, folder.code, dirs_exist_ok=True)
        if self._parameters or self._flags:
            path = folder.path / "payload.json"
            payload = json.loads(path.read_text(encoding="utf-8"))
            payload |= {
                "arguments": [*payload.get("arguments", ()), *self._flags],
                "parameters": dict(self._parameters),
            }
            path.write_text(json.dumps(payload, indent=1), encoding="utf-8")
        if self._checkpoints != "none":
            self._copy_checkpoints(folder)

    @contextlib.contextmanager
    def _translate_errors(self, content: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _DISK_ERRORS:
                raise
            raise _make_unreadable_error(self._folder, error, content) from error

    def _copy_checkpoints(self, folder: JobFolder) -> None:
        with self._translate_errors("checkpoints"):
            _check_owner(self._folder.checkpoints)
        if isinstance(self._checkpoints, str):
            shutil.copytree(self._folder.checkpoints, folder.checkpoints, symlinks=True)
            return
        try:
            checkpoints.copy(self._checkpoints, folder.checkpoints, shutil.copy2)
            is_whole = checkpoints.is_unchanged(self._checkpoints)
        except FileNotFoundError:  # training or keep_checkpoints is deleting it
            is_whole = False
        if not is_whole:
            path = self._checkpoints.path
            raise InvalidSpec(
                f"{path} of job {self._folder.id}, or a file beside it, is being written or deleted.",
                code="checkpoint-changing",
                field="step",
                hint="Try again in a moment, or use a later checkpoint.",
            )

    def format_heading(self) -> str:
        """Return the number and size of the captured variables, and the job that they come from."""
        if not self._spec.captured:
            return f"as in {self._folder.id}"
        bytes_ = sum(variable.size for variable in self._spec.captured)
        return f"{plural(len(self._spec.captured), 'name')}, {size(bytes_)}, as in {self._folder.id}"

    format_summary = format_heading


#: Spec, secret values and code of a new job.
NewJob = tuple["JobSpec", dict[str, str], StoredCode]


def prepare_trial(folder: JobFolder, number: int, parameters: Mapping[str, Any], secrets: Mapping[str, str]) -> NewJob:
    """Return a trial of the sweep in ``folder``. Raises JobNotFound."""
    sweep = folder.read_spec()
    flag_map = dict(sweep.group.plan.get("flags") or {}) if sweep.group else {}
    flags = [text for name, value in parameters.items() if name in flag_map for text in (flag_map[name], str(value))]
    variables = {name: value for name, value in parameters.items() if name not in flag_map}
    spec = dataclasses.replace(
        sweep,
        id=create_id(),
        name=f"{sweep.name}, trial {number}"[:120],
        created=time.time(),
        capture_seconds=0.0,
        trial=number,
        parameters=dict(parameters),
        script_arguments=(*sweep.script_arguments, *flags),
    )
    return spec, dict(secrets), StoredCode(folder, sweep, parameters=variables, flags=flags)


def prepare_rerun(folder: JobFolder, options: Mapping[str, Any], **fields: Any) -> NewJob:
    """Return a job that repeats the one in ``folder`` from its start.

    ``options`` replace those of the earlier job, ``fields`` the fields of its spec. Secret values come from the
    options, else from this process's environment. Raises InvalidSpec if one is missing or an option is invalid,
    PluginUnavailable, JobNotFound.
    """
    original = folder.read_spec()
    spec, secrets = _build_spec(folder, original, options)
    spec = _make_spec(spec, original, resumed_from="", forked_at=None, **fields)
    return spec, secrets, StoredCode(folder, original)


def prepare_move(folder: JobFolder, options: Mapping[str, Any]) -> NewJob:
    """Return a job that replaces the one in ``folder``, which has not started.

    It resumes from the same checkpoints and waits for the same jobs. Raises the errors of ``prepare_resume``, and
    InvalidSpec for a run of a study.
    """
    original = folder.read_spec()
    if original.group is not None:
        raise InvalidSpec(
            f"Job {folder.id} is part of {original.group.name} and must stay on its cluster.",
            code="rerun-of-group",
            field="compute_target",
            hint="Start all runs of it there with compute_target.",
        )
    queued = dataclasses.replace(original, priority=_read_priority(folder, original))
    spec, secrets = _build_spec(folder, queued, options)
    spec = _make_spec(
        spec,
        original,
        resumed_from=original.resumed_from,
        forked_at=original.forked_at,
        check=original.check,
        after=spec.after or tuple(id_ for id_ in original.after if JobStore().get_folder(id_).path.exists()),
        moved_from=folder.id,
    )
    if folder.has_checkpoints:
        _check_can_resume(folder, spec)
    return spec, secrets, StoredCode(folder, original, checkpoints="all" if folder.has_checkpoints else "none")


def _read_priority(folder: JobFolder, spec: JobSpec) -> int:
    """Return the priority of a queued job: the last one requested."""
    requests = [event.get("priority") for event in events.read(folder.control)[0] if event["type"] == "priority"]
    return next((priority for priority in reversed(requests) if isinstance(priority, int)), spec.priority)


def prepare_resume(folder: JobFolder, options: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> NewJob:
    """Return a job that resumes from the checkpoints of the one in ``folder``, or from one ``checkpoint`` of it.

    ``options`` replace those of the earlier job. Raises InvalidSpec, for example without a checkpoint,
    PluginUnavailable, JobNotFound.
    """
    original = folder.read_spec()
    if not folder.has_checkpoints:
        raise InvalidSpec(
            f"Job {folder.id} saved no checkpoint, so it cannot be resumed.",
            code="resume-without-checkpoint",
            field="resume",
            hint="Rerun it from the start. To make a job resumable, save checkpoints in "
            "distdl_jupyter.checkpoint_dir().",
        )
    spec, secrets = _build_spec(folder, original, options)
    _check_can_resume(folder, spec)
    forked_at = checkpoint.step if checkpoint else None
    spec = _make_spec(spec, original, resumed_from=folder.id, forked_at=forked_at)
    return spec, secrets, StoredCode(folder, original, checkpoints=checkpoint or "all")


def _check_can_resume(folder: JobFolder, spec: JobSpec) -> None:
    """Raise InvalidSpec if the cluster cannot copy checkpoints to a job."""
    cluster = registry.get("clusters", spec.cluster)
    if not cluster.can_restart:
        raise InvalidSpec(
            f"{cluster.title or cluster.name} cannot provide checkpoints to a job.",
            code="resume-unsupported",
            field="resume",
            hint=f"Rerun the job and let it read {folder.checkpoints} as a data source.",
        )


def _make_spec(spec: JobSpec, original: JobSpec, **changes: Any) -> JobSpec:
    """Return the spec of a new job outside any study, with the code and values of an earlier one."""
    fields = {"group": None, "moved_from": "", "parameters": original.parameters, **changes}
    return dataclasses.replace(spec, id=create_id(), created=time.time(), capture_seconds=0.0, trial=None, **fields)


def find_secrets(original: JobSpec, values: Mapping[str, Any] = MappingProxyType({})) -> dict[str, str]:
    """Return the values of the earlier job's secret variables, from the options or this process's environment."""
    missing = [name for name in original.secret_variables if name not in values and name not in os.environ]
    if missing:
        raise InvalidSpec(
            f"{', '.join(missing)} was set for job {original.id}, but its value is not stored.",
            code="rerun-secret-missing",
            field="environment_variables",
            hint="Set it in the environment of this process, or submit the job from its notebook again.",
        )
    return {name: str(values[name]) if name in values else os.environ[name] for name in original.secret_variables}


def _build_spec(folder: JobFolder, original: JobSpec, options: Mapping[str, Any]) -> tuple[JobSpec, dict[str, str]]:
    """Return the earlier job's spec with other options, checked like any new job, and its secret values.

    The new job does not wait for other jobs unless the options name some.
    """
    if not options:
        return dataclasses.replace(original, after=()), find_secrets(original)
    from distdl_jupyter.jobs import jobspec

    resolved = jobspec.resolve_options(options)
    variables = {**original.environment_variables, **dict(resolved.get("environment_variables") or {})}
    old_options: dict[str, Any] = {
        name: getattr(original, name) for name, option in OPTIONS.items() if option.is_inherited
    }
    if resolved.get("compute_target", original.compute_target) == original.compute_target:
        old_options |= original.cluster_options
    if resolved.get("distributed_backend", original.distributed_backend) == original.distributed_backend:
        old_options |= original.backend_options
    if "node_count" in resolved and isinstance(resolved["node_count"], int) and original.min_node_count is not None:
        old_options["min_node_count"] = min(original.min_node_count, resolved["node_count"])
    secrets = find_secrets(original, variables)
    remaining = {name: value for name, value in options.items() if ALIASES.get(name, name) != "environment_variables"}
    new_options = override(old_options, remaining) | {"environment_variables": {**variables, **secrets}}
    spec, secrets = jobspec.build(_load_draft(folder, original), new_options, id_=create_id(), python=original.python)
    if not {"vm_size", "price_per_hour", "compute_target"} & resolved.keys():
        spec = dataclasses.replace(
            spec, price_per_hour=original.price_per_hour, currency=original.currency, price_source=original.price_source
        )
    return dataclasses.replace(spec, versions=original.versions), secrets


def _load_draft(folder: JobFolder, original: JobSpec) -> CapturedCode:
    """Return the draft of an earlier job's code; its files are copied, not captured again."""
    from distdl_jupyter.capture import CapturedCode

    try:
        payload = json.loads((folder.path / "payload.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _make_unreadable_error(folder, error) from error
    return CapturedCode(
        kind=original.kind,
        name=original.name,
        source=original.source,
        captured=original.captured,
        payload_json=payload,
        secret_arguments=frozenset(number for number, text in enumerate(original.script_arguments) if text == "•••"),
        secret_variables=frozenset(original.secret_variables),
    )


def _make_unreadable_error(folder: JobFolder, error: Exception, content: str = "code") -> JobNotFound:
    return JobNotFound(
        f"The {content} of job {folder.id} cannot be read: {getattr(error, 'strerror', None) or error}.",
        code="rerun-unreadable",
        hint="Submit it from its notebook again.",
    )


def _copy_checked(source: Path, target: Path) -> None:
    with owned.open_own(source) as original, open(target, "wb", opener=owned.open_private) as copy:
        shutil.copyfileobj(original, copy, 1 << 20)


def _check_owner(tree: Path) -> None:
    if reason := permissions.find_tree_refusal(tree):
        raise PermissionError(f"{reason}, so it is not copied")
