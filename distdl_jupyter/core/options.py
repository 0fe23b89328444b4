"""The options of every job, each declared once.

``submit``, the magics, the command line, the form and resumes read the fields of ``JobOptions``; ``core.spec.JobSpec``
has the same fields with checked values. The aliases are the names that Azure ML, Batch AI, torchrun, horovodrun,
accelerate, SageMaker, TorchDistributor and HorovodRunner use.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from distdl_jupyter.core import humanize, tracking
from distdl_jupyter.core.alerts import check_rules
from distdl_jupyter.core.data import DataSource, check_packages, parse_blob
from distdl_jupyter.core.errors import InvalidSpec

#: Checks a value (neither None nor "") of a field and returns it. Raises InvalidSpec.
Check = Callable[[Any, str], Any]
#: Maximum number of nodes, and of processes per node; of restarts (more would in practice be endless).
MAX_PROCESSES, MAX_RESTARTS = 100_000, 1000
#: Maximum number of GPUs and of cores of a process, and the highest priority of a queued job.
MAX_GPUS, MAX_CORES, MAX_PRIORITY = 1024, 65_536, 1_000_000
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?)[bB]?")
_KEEP_RULE = re.compile(
    r"last\s+(?P<last>\d{1,4})(?:\s*,\s*best\s+(?P<best>\d{1,4})\s+of\s+(?:(?P<direction>lowest|highest)\s+)?(?P<metric>\S.*))?"
)
#: Names of metrics of which higher values are better by default.
MAXIMIZED_METRIC = re.compile(
    r"acc|f1|auc|precision|recall|bleu|rouge|iou|dice|score|reward|r2|psnr|ssim", re.IGNORECASE
)
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,120}")


def check_name(value: Any, field: str = "name") -> str:
    """Return the job's name. Raises InvalidSpec unless it has 1 to 120 characters without control characters."""
    if not _NAME.fullmatch(str(value)):
        message = "The name of a job must have 1 to 120 printable characters."
        raise InvalidSpec(message, code="job-name-invalid", field=field)
    return str(value)


def _to_text(value: Any, _field: str) -> str:
    return str(value)


def _check_positive(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        message = f"{field} must be a number above 0, not {value!r}."
        raise InvalidSpec(message, code="option-not-a-positive-number", field=field)
    return float(value)


def check_range(lower: int, upper: int) -> Check:
    """Return a check that accepts integers from ``lower`` to ``upper``, and None for the default."""

    def check(value: Any, field: str) -> int | None:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not lower <= value <= upper):
            message = f"{field} must be an integer from {lower:,} to {upper:,}, not {value!r}."
            raise InvalidSpec(message, code="option-out-of-range", field=field)
        return value

    return check


#: Checks a count of nodes or processes.
check_count = check_range(1, MAX_PROCESSES)


def parse_size(value: Any, field: str) -> int | None:
    """Return the bytes of a size: a number, or text such as "24 GB" (powers of 1000) or "24 GiB" (powers of 1024)."""
    if value in (None, ""):
        return None
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            message = f'{field} must be a size, not {value!r}. Use a value such as "24 GB".'
            raise InvalidSpec(message, code="size-invalid", field=field)
        value = float(match[1]) * (1024 if match[3] else 1000) ** "bkmgt".index((match[2] or "b").lower())
    return int(_check_positive(value, field))


def _parse_jobs(value: Any, _field: str) -> tuple[str, ...] | None:
    """Return the ids of one or several jobs, which are Job objects or ids."""
    jobs = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple | set) else [value]
    return tuple(dict.fromkeys(str(getattr(job, "id", job)).strip() for job in jobs)) or None


def _check_bool(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        message = f"{field} must be True, False or None (automatic), not {value!r}."
        raise InvalidSpec(message, code="option-not-a-boolean", field=field)
    return value


def _check_variables(value: Any, field: str) -> dict[str, str]:
    try:
        variables = {name: str(text) for name, text in dict(value).items()}
    except (TypeError, ValueError):
        message = f'{field} must be a dict of names and values, such as {{"OMP_NUM_THREADS": "2"}}.'
        raise InvalidSpec(message, code="environment-not-a-dict", field=field) from None
    for name, text in variables.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name + text:
            message = f"The environment variable {name!r} has an invalid name, or a value with a null character."
            raise InvalidSpec(message, code="environment-name-invalid", field=field)
        if name.startswith("DISTDL_"):
            message = f"{name} is reserved for this package. Use a name that does not begin with DISTDL_."
            raise InvalidSpec(message, code="environment-name-reserved", field=field)
    return variables


@dataclass(frozen=True, slots=True)
class KeepRule:
    """The number of checkpoints of each group to keep: the newest, and the best by a metric. ``text`` is the rule."""

    text: str
    last: int
    best: int = 0
    metric: str = ""
    is_maximized: bool = False


def parse_keep_rule(text: str, field: str = "keep_checkpoints") -> KeepRule:
    """Parse a rule such as ``last 3, best 2 of val_loss``. Raises InvalidSpec."""
    match = _KEEP_RULE.fullmatch(text.strip())
    if match is None or not int(match["last"]):
        message = f'{field} must be a rule such as "last 3", or "last 3, best 2 of lowest val_loss", not {text!r}.'
        raise InvalidSpec(message, code="keep-checkpoints-invalid", field=field)
    metric = (match["metric"] or "").strip()
    default = "highest" if MAXIMIZED_METRIC.search(metric) else "lowest"
    is_maximized = (match["direction"] or default) == "highest"
    return KeepRule(text, int(match["last"]), int(match["best"] or 0), metric, is_maximized)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionInfo:
    """The metadata of an option, in addition to its type and default value.

    ``help`` has no full stop at the end, ``default_text`` describes the default, ``label`` is the display name, and
    ``aliases`` are the names in other tools. ``flags`` are the flags in addition to the option's name, ``metavar`` is
    the placeholder of the value in their help, and ``value_type`` (int, float or str) its type. An ``is_switch`` option
    has the flags ``--name`` and ``--no-name`` without a value. ``format_value`` formats a value that is not the default
    for display. The form shows an ``is_in_form`` option, and a resumed job inherits an ``is_inherited`` option.
    """

    check: Check
    help: str
    default_text: str = ""
    flags: tuple[str, ...] = ()
    metavar: str = ""
    value_type: type = str
    is_repeatable: bool = False
    is_switch: bool = False
    aliases: tuple[str, ...] = ()
    label: str = ""
    format_value: Callable[[Any], str] = str
    is_in_form: bool = True
    is_inherited: bool = True


def _option(default: Any, check: Check, help_: str, **metadata: Any) -> Any:
    return dataclasses.field(default=default, metadata={"info": OptionInfo(check=check, help=help_, **metadata)})


_number = functools.partial(_option, metavar="N", value_type=int)
_seconds = functools.partial(
    _option, check=_check_positive, metavar="S", value_type=float, format_value=humanize.duration
)
_switch = functools.partial(_option, check=_check_bool, is_switch=True)
_list = functools.partial(_option, (), is_repeatable=True, format_value=", ".join)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of every job, in the order of a ``%%distributed`` line; durations are in seconds."""

    node_count: int = _number(
        1, check_count, "Number of nodes", default_text="1", flags=("-N",),
        aliases=("num_nodes", "nnodes", "instance_count", "nodeCount"),
    )  # fmt: skip
    process_count_per_node: int = _number(
        1, lambda value, field: value if value == "auto" else check_count(value, field),
        "Processes per node; auto: one per GPU", default_text="1", flags=("-p",),
        aliases=("nproc_per_node", "process_count_per_instance", "numGpus"),
    )  # fmt: skip
    #: The canonical label: ``plain``, ``torch``, ``horovod-gloo``, ``horovod-mpi``, ...
    distributed_backend: str = _option(
        "plain", _to_text, "One of {backends}", default_text="torch, or plain for one process", flags=("-b",),
        metavar="NAME", aliases=("backend",),
    )  # fmt: skip
    compute_target: str = _option(
        "local", _to_text, "One of {clusters}, or the name of an added cluster", default_text="local", metavar="NAME",
        aliases=("target", "compute", "cluster"),
    )  # fmt: skip
    vm_size: str | None = _option(
        None, _to_text, "Azure VM size, for clusters that rent machines", metavar="SIZE",
        aliases=("vm_series", "instance_type"), label="VM size",
    )  # fmt: skip
    price_per_hour: float | None = _option(
        None, lambda price, _: price, 'Price of one node per hour, for the running cost: 3.5, or "3.5 EUR"',
        metavar="PRICE", is_inherited=False,
    )  # fmt: skip
    name: str = _option("", check_name, "The job's name", default_text="notebook and cell number", metavar="NAME")
    use_gpu: bool | None = _switch(
        None, help_="Whether each rank gets a GPU", default_text="if the machine has GPUs", aliases=("useGpu",),
        label="GPU", format_value=lambda needed: "required" if needed else "not used",
    )  # fmt: skip
    #: Requested GPUs are never shared; without ``gpus``, each process gets one, or the processes share those there are.
    #: Cores and memory are reserved only on request: the need is unknown in advance, and small jobs start immediately.
    gpus: int | None = _number(
        None, check_range(0, MAX_GPUS), "GPUs per process, reserved while it runs; 0 for none",
        default_text="one per process, if there are enough", label="GPUs per process",
    )  # fmt: skip
    cores: int | None = _number(
        None, check_range(1, MAX_CORES), "Cores per process, reserved while it runs", default_text="not limited",
        label="Cores per process",
    )  # fmt: skip
    memory: int | None = _option(
        None, parse_size, 'Memory per process, reserved while it runs: "24 GB"', default_text="not limited",
        metavar="SIZE", label="Memory per process", format_value=humanize.size,
    )  # fmt: skip
    priority: int = _number(
        0, check_range(-MAX_PRIORITY, MAX_PRIORITY), "Jobs of a higher priority start before your other queued jobs",
        default_text="0", label="Priority",
    )  # fmt: skip
    after: tuple[str, ...] = _list(
        _parse_jobs, "Start after job ID has completed; if that job fails, the new job is canceled. Can be repeated",
        metavar="ID", is_inherited=False, label="Starts after",
        format_value=lambda ids: ", ".join(map(humanize.short_id, ids)),
    )  # fmt: skip
    max_run_duration_seconds: float | None = _seconds(
        None, help_="Stop the job after S seconds", aliases=("timeout",), label="Stops after"
    )
    hang_timeout_seconds: float | None = _seconds(
        None, help_="Stop the job and keep the stacks of all ranks when no rank makes progress for S seconds",
        aliases=("hang_timeout",), label="Hang timeout",
    )  # fmt: skip
    idle_timeout_seconds: float | None = _seconds(
        None, help_="Stop a session's ranks after S seconds without a cell",
        default_text="never on this machine, 2 h on other clusters", aliases=("idle_timeout",), is_in_form=False,
        label="Idle timeout",
    )  # fmt: skip
    max_restarts: int = _number(
        0, check_range(0, MAX_RESTARTS),
        "Restart all ranks after a failure, up to N times; files in checkpoint_dir() are kept", default_text="0",
        aliases=("reset_limit",), label="Restarts", format_value="up to {}".format,
    )  # fmt: skip
    keep_checkpoints: str = _option(
        "", lambda value, field: parse_keep_rule(str(value), field).text,
        "Delete older checkpoints in checkpoint_dir(): last 3, or last 3, best 2 of val_loss (add lowest or highest "
        "before the metric to choose)", default_text="all", metavar="RULE", is_in_form=False, label="Keeps checkpoints",
    )  # fmt: skip
    notify_when: tuple[str, ...] = _list(
        check_rules, "Send a message when a metric's mean over ranks meets a rule for the first time, such as "
        '"val_acc > 0.9". Can be repeated', metavar="RULE", is_in_form=False, label="Notifies when",
    )  # fmt: skip
    track: str = _option(
        "", tracking.check_trackers, "Track the job with mlflow, tensorboard or wandb, several separated by commas, or "
        "off for none", default_text="from your settings", metavar="NAME", label="Tracked with",
        format_value=tracking.format_titles,
    )  # fmt: skip
    min_node_count: int | None = _number(
        None, check_count, "Restart with the remaining nodes after a node is lost, as long as at least N remain",
        default_text="all", is_in_form=False, label="Minimum nodes",
        format_value=lambda count: f"at least {humanize.plural(count, 'node')}",
    )  # fmt: skip
    #: Metrics, states and results are never dropped.
    max_log_bytes: int = _number(
        1_000_000_000, parse_size, "Maximum size of the log in bytes; a longer log keeps only its first half and its "
        "last lines", default_text="1 GB", is_in_form=False, label="Log",
        format_value=lambda limit: f"up to {humanize.size(limit)}",
    )  # fmt: skip
    metrics_from_output: bool = _switch(
        default=True, help_="Read metrics and progress from printed output, until the code reports its own",
        default_text="yes", label="Printed metrics", format_value=lambda enabled: "read" if enabled else "not read",
    )  # fmt: skip
    weight_check_steps: int = _number(
        100, check_range(0, 1_000_000_000),
        "Compare the weights of all ranks every N optimizer steps (torch); 0: never", default_text="100",
        is_in_form=False, label="Weights compared",
        format_value=lambda steps: f"every {humanize.plural(steps, 'step')}" if steps else "never",
    )  # fmt: skip
    #: Makes torch record the stack of each live allocation, which costs about 2 microseconds (worker.hooks.gpu_memory).
    record_gpu_memory: bool = _switch(
        default=False, default_text="no", is_in_form=False, label="GPU memory",
        help_="Record which lines allocate GPU memory (torch), so that an out-of-memory error lists the largest",
        format_value=lambda on: "recorded by line" if on else "not recorded",
    )  # fmt: skip
    #: For code in which the check is wrong, for example because a module adds names to the builtins.
    allow_undefined: bool = _switch(
        default=False, help_="Start even if the code uses undefined names", default_text="no", label="Undefined names",
        format_value=lambda allowed: "allowed" if allowed else "refused",
    )  # fmt: skip
    stop_grace_seconds: float = _seconds(
        5.0, help_="Seconds between the signals INT, TERM and KILL when the job is stopped", default_text="5",
        is_in_form=False, label="Grace period",
    )  # fmt: skip
    environment_variables: dict[str, str] = dataclasses.field(default_factory=dict, metadata={"info": OptionInfo(
        check=_check_variables,
        help="An environment variable of the ranks; NAME alone passes the value from this machine. Can be repeated",
        flags=("--env",), metavar="NAME=VALUE", is_repeatable=True, aliases=("env",), is_inherited=False,
    )})  # fmt: skip
    data: tuple[DataSource, ...] = _list(
        lambda sources, _: sources, "Data to copy to every node before the ranks start: "
        "blob://account/container/prefix, s3://bucket/prefix, gs://bucket/prefix, https://host/file, shared:/path or a "
        "path on this machine; ?shard gives each node a part. Can be repeated", metavar="NAME=ADDRESS", label="Data",
        format_value=lambda sources: ", ".join(f"{source.name}={source.url}" for source in sources),
    )  # fmt: skip
    pip_packages: tuple[str, ...] = _list(
        check_packages,
        "A package to install from PyPI on every node before the ranks start, such as numpy==2.2. Can be repeated",
        flags=("--pip",), metavar="PACKAGE", aliases=("packages_to_install",), label="pip packages",
    )  # fmt: skip
    conda_packages: tuple[str, ...] = _list(
        check_packages, "A package to install with conda on every node before the ranks start, such as "
        "conda-forge::ffmpeg=7. Can be repeated", flags=("--conda",), metavar="PACKAGE", label="conda packages",
    )  # fmt: skip
    requirements: str = _option(
        "", _to_text, "Packages to install on every node before the ranks start: requirements.txt, pylock.toml, or a "
        "script with inline dependencies (PEP 723)", metavar="FILE", aliases=("pip_requirements_file",),
        label="Requirements", format_value=lambda text: humanize.plural(text.count("\n"), "line"),
    )  # fmt: skip
    outputs: str = _option(
        "", lambda value, field: parse_blob(str(value).rstrip("/"), field).address,
        "Where to copy outputs/ at the end, besides the job's folder: blob://account/container/prefix",
        metavar="ADDRESS", label="Outputs to",
    )  # fmt: skip


#: The metadata of each option, by name.
OPTIONS: dict[str, OptionInfo] = {field.name: field.metadata["info"] for field in dataclasses.fields(JobOptions)}
#: The default of each option.
DEFAULTS: dict[str, Any] = {field.name: getattr(JobOptions(), field.name) for field in dataclasses.fields(JobOptions)}


def list_flags(name: str) -> list[str]:
    """Return the flags of an option, the short one first."""
    spellings = OPTIONS[name].flags
    return list(spellings) if "--" in "".join(spellings) else [*spellings, f"--{name.replace('_', '-')}"]


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked values of options under their primary names, without defaults. Raises InvalidSpec."""
    values = {
        name: option.check(value, name)
        for name, option in OPTIONS.items()
        if (value := options.get(name)) is not None and not (isinstance(value, str) and not value)
    }
    return {name: value for name, value in values.items() if value is not None}


#: Aliases of the options of every job, with the primary name.
ALIASES: dict[str, str] = {alias: name for name, option in OPTIONS.items() for alias in option.aliases}
#: Aliases for the total number of processes, which is divided by the number of nodes.
TOTAL_NAMES = ("np", "num_proc", "num_processes", "num_workers")
#: Maps the command-line flag of each alias to its name, except ``--env`` and ``--use-gpu``, which are primary flags.
OTHER_FLAGS = {
    f"--{name.replace('_', '-')}": name for name in (*ALIASES, *TOTAL_NAMES) if name not in ("env", "useGpu")
}


def resolve(arguments: Mapping[str, Any], allowed: Iterable[str]) -> dict[str, Any]:
    """Return the options in ``arguments`` under their primary names.

    Raises InvalidSpec for an unknown name, for one option under two names with different values, and for a total number
    of processes that is not divisible by the number of nodes. ``np < 0`` means ``-np`` processes on this machine, as in
    HorovodRunner; ``local_mode=True`` means ``compute_target="local"``, as in TorchDistributor.
    """
    allowed = set(allowed)
    options: dict[str, Any] = {}
    spellings: dict[str, str] = {}
    for name, value in sorted(arguments.items(), key=lambda argument: argument[0] in TOTAL_NAMES):
        primary = ALIASES.get(name, name)
        if name == "local_mode":
            continue
        if name in TOTAL_NAMES:
            primary, value = "process_count_per_node", _divide_total(name, value, options)  # noqa: PLW2901
        if primary not in allowed:
            hint = "%%distributed? and 'distdl submit --help' list all options."
            raise InvalidSpec(describe_unknown(name, allowed), code="option-unknown", field=name, hint=hint)
        if primary in spellings and options[primary] != value:
            values = f"{options[primary]!r} and {value!r}"
            message = f"{spellings[primary]} and {name} set the same option, but their values differ: {values}."
            raise InvalidSpec(message, code="option-given-twice", field=primary, hint="Use only one of them.")
        options[primary], spellings[primary] = value, name
    return {**options, "compute_target": "local"} if arguments.get("local_mode") is True else options


def _divide_total(name: str, total: Any, options: dict[str, Any]) -> int:
    """Return the processes per node of a total number of processes; set the target if the total is negative."""
    node_count = options.get("node_count", 1)
    counts = (total, node_count)
    if any(isinstance(count, bool) or not isinstance(count, int) for count in counts) or total % (node_count or 1):
        message = f"{name}={total!r} processes cannot be divided evenly among {node_count} nodes."
        hint = "Use process_count_per_node instead."
        raise InvalidSpec(message, code="processes-not-divisible", field=name, hint=hint)
    if total < 0 and options.setdefault("compute_target", "local") != "local":
        message = f"A negative {name} means processes on this machine, not on compute_target."
        hint = "Remove compute_target or give a positive number."
        raise InvalidSpec(message, code="negative-process-count", field=name, hint=hint)
    return int(abs(total) // (node_count or 1))


def override(options: Mapping[str, Any], updates: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` updated with ``updates``; an alias replaces its primary name, and vice versa."""
    primary = {**ALIASES, **dict.fromkeys(TOTAL_NAMES, "process_count_per_node")}
    replaced = {primary.get(name, name) for name in updates}
    return {name: value for name, value in options.items() if primary.get(name, name) not in replaced} | dict(updates)


#: Maximum number of allowed names, and of similar names, in an error message.
_MAX_LISTED, _MAX_SUGGESTED = 10, 5
#: Minimum similarity of a suggestion, and of its beginning (1 is identical).
_MIN_SIMILARITY, _MIN_PREFIX_SIMILARITY = 0.65, 0.8


def describe_unknown(
    name: str, allowed: Iterable[str], kind: str = "option", owner: str = "", *, aliases: Mapping[str, str] = ALIASES
) -> str:
    """Return the error message for an unknown name with the nearest allowed names.

    ``owner`` is inserted after the name, such as "of the cluster lab". If no name is similar, it lists up to 10 names.
    """
    names, text = sorted(allowed), _normalize(name)
    full: dict[str, list[str]] = {}
    prefixes: dict[str, list[str]] = {}
    for spelling, option in [*zip(names, names, strict=True), *aliases.items()]:
        if option in names:  # an alias is replaced by its primary name
            full.setdefault(_normalize(spelling), []).append(option)
            prefixes.setdefault(_normalize(spelling)[: len(text)], []).append(option)
    nearest: list[str] = []
    for options, min_similarity in ((prefixes, _MIN_PREFIX_SIMILARITY), (full, _MIN_SIMILARITY)):
        matches = get_close_matches(text, options, _MAX_SUGGESTED, min_similarity)
        nearest = nearest or [*dict.fromkeys(option for match in matches for option in options[match])]
    suggestion = f" Use one of: {', '.join(names)}." if len(names) <= _MAX_LISTED else ""
    if nearest:
        *others, last = nearest[:_MAX_SUGGESTED]
        suggestion = f" Did you mean {' or '.join(filter(None, (', '.join(others), last)))}?"
    return f"Unknown {kind} {name!r}{owner and ' '}{owner}.{suggestion}"


def _normalize(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()
