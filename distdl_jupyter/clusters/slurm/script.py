"""The options of a Slurm cluster, and the files of a job: package, agent files, and batch script.

These files contain no secret values; sbatch passes them through its environment.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shlex
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, ClassVar

from distdl_jupyter import permissions
from distdl_jupyter.clusters import package
from distdl_jupyter.clusters.agents import staging
from distdl_jupyter.clusters.agents.agent import NETWORK_HELP
from distdl_jupyter.clusters.slurm import commands
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.options import MAX_RESTARTS, within
from distdl_jupyter.core.plan import option
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.node import folder as agents
from distdl_jupyter.worker import owned

_START_FILE = "start"
#: Exit code of a script that Slurm has requeued (EX_TEMPFAIL).
REQUEUED = 75
#: Exit code of a script on a node without access to the job's files (EX_NOINPUT).
UNSEEN = 66
#: The parts of a job's folder that ranks read.
_RANK_FILES = ("payload.json", "payload.pkl", "code")
#: Minutes by which Slurm's time limit exceeds the limit that the supervisor enforces.
_EXTRA_MINUTES = 2
#: The long and the short options of sbatch that this package sets for every job.
_RESERVED = (
    "--array --wrap --parsable --output --error --export --export-file --job-name --nodes --ntasks --ntasks-per-node "
    "--chdir --requeue --signal --wait --test-only --open-mode"
)
_RESERVED_LETTERS = "aoeJNnDW"
_PATH = r"[^\s\"'\\]*"
#: The format of text options, in Slurm's or pyxis' notation: pattern, description, example.
_FORMATS = {
    "container_image": (_PATH, "without spaces, quotes and backslashes", ""),
    "container_mounts": (_PATH, "without spaces, quotes and backslashes", ""),
    "time_limit": (
        r"|\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|(?i:unlimited|infinite)",
        "a time",
        "Write 30 (minutes), 2:00:00 (hours), 1-12 (days-hours) or UNLIMITED.",
    ),
    "gpus_per_node": (
        r"|(?:(?:gpu:)?[A-Za-z0-9_.-]+:)?\d+",
        "a number, or a type and a number",
        "Write 4 or a100:4.",
    ),
}
#: Minimum and maximum of numeric options; ``--signal`` is limited to 65,535 seconds.
_NUMBER_LIMITS = {"requeue": (0, MAX_RESTARTS), "checkpoint_seconds": (0, 65_535), "cpus_per_task": (1, 1_000_000)}
#: The remedy if srun lacks ``--container-image``.
CONTAINER_REMEDY = "Ask the administrators to install pyxis and enroot, or remove container_image."


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """The options of every job on this cluster."""

    #: Options of agents: they detect whether nodes share the job's folder, and Slurm decides how many processes fit.
    shared: ClassVar[bool | None] = None
    oversubscribe: ClassVar[bool] = True
    partition: str = option("", "partition (default: Slurm's default partition)", first=True)
    account: str = option("", "account that is charged")
    qos: str = option("", "quality of service")
    time_limit: str = option(
        "", "longest run time of a job, in Slurm's notation: 30 (minutes), 2:00:00, 1-12 (days-hours)", first=True
    )
    requeue: int = option(
        0,
        "how often a job is requeued and resumed from checkpoint_dir() after its time limit, preemption or "
        "a lost node ended it; jobs that fail are not requeued (default: 0)",
    )
    checkpoint_seconds: int = option(
        60,
        "how many seconds before the time limit ranks are asked to save (should_checkpoint(), SIGUSR1); "
        "Slurm may ask up to a minute earlier",
    )
    gpus_per_node: str = option("", "GPUs on each node, for example 4 or a100:4", first=True)
    cpus_per_task: int | None = option(None, "cores for each process")
    constraint: str = option("", "features that the nodes must have")
    extra: str = option("", "further sbatch options, as on its command line")
    python: str = option("", "Python that runs the ranks on the nodes (default: the path of this Python)")
    setup: str = option("", "shell commands to run on every node before the start, for example 'module load cuda'")
    container_image: str = option(
        "", "container image for the ranks, in pyxis notation: nvcr.io#nvidia/cuda:12.6.3, /x.sqsh"
    )
    container_mounts: str = option("", "further folders to mount in the container, in pyxis notation: /data:/data:ro")
    directory: str = option("", "folder that all nodes share (default: the job's folder, if all nodes share it)")
    network: str = option("", NETWORK_HELP)
    data_directory: str = option("", "folder for data on the disk of each node (default: the user's cache folder)")

    def __post_init__(self) -> None:
        for name in ("time_limit", "gpus_per_node"):
            value = getattr(self, name)  # Python callers may pass numbers
            object.__setattr__(self, name, "" if value is None else str(value).strip())
        for name, (pattern, description, hint) in _FORMATS.items():
            if not re.fullmatch(pattern, value := getattr(self, name)):
                message = f"{name} is {value!r}, but must be {description}."
                raise InvalidSpec(message, code="slurm-option-invalid", field=name, hint=hint)
        for name, (minimum, maximum) in _NUMBER_LIMITS.items():
            within(minimum, maximum)(getattr(self, name), name)
        if self.container_mounts and not self.container_image:
            message = "container_mounts is set, but container_image is not."
            hint = "Set container_image, or remove container_mounts."
            raise InvalidSpec(message, code="slurm-mounts-without-image", field="container_mounts", hint=hint)
        try:
            reserved = next(filter(_is_reserved, self.more), None)
        except ValueError as error:
            message = f"extra cannot be read as a command line: {error}."
            raise InvalidSpec(message, code="slurm-extra-unreadable", field="extra") from None
        if reserved:
            message = f"extra contains {reserved}, which is set automatically."
            hint = "Remove it. Set the number of ranks with node_count and process_count_per_node."
            raise InvalidSpec(message, code="slurm-extra-reserved", field="extra", hint=hint)

    @property
    def gpus(self) -> int:
        """The number of GPUs of a job on each node."""
        return commands.gpus_in(self.gpus_per_node)[0]

    @property
    def more(self) -> list[str]:
        """The arguments in ``extra``."""
        return shlex.split(self.extra)


def _is_reserved(argument: str) -> bool:
    """Return whether an argument is an option that every job sets, also abbreviated or joined: --out=x, -ox."""
    name = argument.partition("=")[0]
    if name.startswith("--"):
        return len(name) > len("--") and any(option.startswith(name) for option in _RESERVED.split())
    return bool(re.match(f"-[{_RESERVED_LETTERS}]", name))


# files ------------------------------------------------------------------------------------------


class JobDirectory:
    """A job's files for the nodes: ``job`` is the job's folder for ranks, ``run`` its folder for Slurm."""

    def __init__(self, folder: JobFolder, directory: str, restart: int = 0) -> None:
        self.job = Path(directory).expanduser().absolute() / folder.id if directory else folder.path
        self.copied = self.job.resolve() != folder.path.resolve()
        #: Each attempt has a separate folder, because agents of an earlier attempt may still be writing.
        self.run = self.job / (f"slurm-{restart}" if restart else "slurm")
        self.batch = self.run / "batch"
        self.output = self.run / "job.out"
        #: The link to ``run`` that the job's task in a sweep's array follows (``array``), None without an array.
        self.link: Path | None = None
        #: Whether ranks may have written files that were not copied yet; ``remove`` keeps them.
        self.has_uncollected_files = False

    def write(self, folder: JobFolder, spec: JobSpec, options: SlurmOptions) -> None:
        """Write all files. Raises LaunchFailed."""
        try:
            self.make()
            if self.copied:
                self._copy(folder)
            zipfile.ZipFile(io.BytesIO(package.built().content)).extractall(self.run / "lib")
            agent_files = [name for node in range(spec.node_count) for name in agents.files(node)]
            for name in (self.output.name, agents.FAILED, agents.WARNED, *agent_files):
                owned.write(self.run / name, b"")
            python = options.python or ("" if options.container_image else spec.python) or "python3"
            owned.write(self.run / _START_FILE, _start_script(self, options, python).encode())
            (self.run / _START_FILE).chmod(0o700)
            owned.write(self.batch, batch(self, spec, options).encode())
        except OSError as error:
            raise unusable(error, self.job) from error

    def make(self) -> None:
        """Create missing folders. Raises OSError."""
        if self.copied:
            permissions.user_folder(self.job.parent)
        permissions.private_folder(self.job)
        permissions.private_folder(self.run)

    def claim_task(self, link: Path) -> bool:
        """Claim the array task of this link; return whether it succeeded. Raises OSError."""
        with contextlib.suppress(FileExistsError):
            link.symlink_to(self.run)
        if not points_to(link, self.run):
            return False
        self.link, self.output = link, link.with_name(f"{link.name}.out")
        self.output.touch(0o600)
        return True

    def handle(self, job: str, link: Path | None = None) -> dict[str, Any]:
        """Return the plain data from which another supervisor finds the submitted job."""
        link_field = {"link": str(link)} if link else {}
        return {"slurm_job": job, "folder": str(self.job), "run": self.run.name, "copied": self.copied, **link_field}

    def _copy(self, folder: JobFolder) -> None:
        for name in _RANK_FILES:
            source = folder.path / name
            if source.is_dir():
                shutil.copytree(source, self.job / name, dirs_exist_ok=True)
            elif source.exists():
                shutil.copy2(source, self.job / name)
        shutil.rmtree(self.job / "results", ignore_errors=True)  # values of an earlier attempt
        for name in ("results", "outputs"):
            (self.job / name).mkdir(mode=0o700, exist_ok=True)
        checkpoints = self.job / "outputs" / folder.checkpoints.name
        if folder.has_checkpoints and not checkpoints.exists():  # an existing one is newer and was not copied
            shutil.copytree(folder.checkpoints, checkpoints, symlinks=True)

    def collect(self, folder: JobFolder, ranks: int) -> list[str]:
        """Copy results and outputs into the job's folder; return why values were not copied. Raises OSError."""
        if not self.copied:
            return []
        self.has_uncollected_files = True
        reasons = list[str]()
        for path in sorted((self.job / "results").iterdir()):
            status = path.lstat()
            reason = owned.refusal(status) or staging.result_refusal(PurePath(path.name), status.st_size, range(ranks))
            if not reason:
                shutil.copy2(path, folder.results / path.name, follow_symlinks=False)
            elif not path.name.startswith("."):
                reasons.append(f"{path} was not copied: {reason}.")
        _copy_tree(self.job / "outputs", folder.outputs)
        self.has_uncollected_files = bool(reasons)
        return reasons

    def remove(self) -> None:
        """Remove the files for the nodes; below the option ``directory``, only a folder that ``write`` created."""
        folder = self.job if self.copied and not self.has_uncollected_files else self.run
        if permissions.is_own(folder) and (not self.copied or (self.run / _START_FILE).is_file()):
            shutil.rmtree(folder, ignore_errors=True)


def unusable(error: OSError, folder: Path) -> LaunchFailed:
    """Return the error of a job whose files cannot be written."""
    problem = f"written to {error.filename or folder}: {error.strerror}" if error.strerror else f"used: {error}"
    return LaunchFailed(
        f"The job's files cannot be {problem}.",
        code="slurm-files-unusable",
        hint="Set the option directory to a folder that belongs to you and that all nodes share.",
    )


def points_to(link: Path, run: Path) -> bool:
    """Return whether the array task with this link was claimed for the job whose folder is ``run``."""
    return link.is_symlink() and link.readlink() == run


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a folder into an existing one without following links there; leave out sockets and pipes. Raises OSError."""
    special_paths = set[str]()
    for directory, folders, names in os.walk(source):
        for entry in (Path(directory, name) for name in (*folders, *names)):
            if not (entry.is_symlink() or entry.is_dir() or entry.is_file()):
                special_paths.add(str(entry))
            existing = target / entry.relative_to(source)
            if existing.is_symlink() or existing.is_file():
                existing.unlink()
            elif existing.is_dir() and (entry.is_symlink() or not entry.is_dir()):
                shutil.rmtree(existing)
    ignored = lambda folder, names: {name for name in names if str(Path(folder, name)) in special_paths}  # noqa: E731
    shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True, ignore=ignored)


# scripts ----------------------------------------------------------------------------------------


def lacks_containers() -> str:
    """Return why jobs cannot run in containers here, "" if they can. Raises SlurmFailed."""
    # Slurm plug-ins add their options to this output.
    if "--container-image" in commands.run("srun", "--help"):
        return ""
    return "srun has no option --container-image, because the plugin pyxis is not installed"


def container(options: SlurmOptions, *folders: Path) -> list[str]:
    """Return srun's options for the image; absolute ``folders`` except / are mounted at the same path."""
    if not options.container_image:
        return []
    mounts = [f"{folder}:{folder}" for folder in folders if folder.is_absolute() and folder != Path("/")]
    mounts += [options.container_mounts] if options.container_mounts else []
    return [
        f"--container-image={options.container_image}",
        *([f"--container-mounts={','.join(mounts)}"] if mounts else []),
    ]


def _start_script(directory: JobDirectory, options: SlurmOptions, python: str) -> str:
    """Return the script of each node: the option ``setup``, then the agent."""
    shell = "#!/bin/bash -l\n" if options.setup else "#!/bin/sh\n"
    setup = f"set -e\n{options.setup}\nset +e\n" if options.setup else ""
    library, run = shlex.quote(str(directory.run / "lib")), shlex.quote(str(directory.run))
    return (
        f'{shell}{setup}export PYTHONPATH={library}"${{PYTHONPATH:+:$PYTHONPATH}}"\n'
        f'exec {shlex.quote(python)} -P -m distdl_jupyter.node.folder {run} "$SLURM_NODEID"\n'
    )


def batch(directory: JobDirectory, spec: JobSpec, options: SlurmOptions) -> str:
    """Return the batch script; it exits with the code of the rank that failed first.

    The agent is the only task on its node, so it gets all resources of the job there; srun would limit several tasks to
    their shares of the cores. The script ignores TERM, which Slurm sends before it kills a job: if the script exited,
    Slurm would kill the agents before they can report the exits of ranks. USR1 is Slurm's earlier warning
    (``--signal``), which agents read from a file. A requeued script exits, as each attempt has new files and a new job.
    """
    in_container = container(options, directory.job, Path(spec.working_directory))
    # A login on a node may lack Slurm's commands on its PATH.
    programs = shlex.quote(str(Path(shutil.which("srun") or shutil.which("sbatch") or "/usr/bin/srun").parent))
    return (
        f'#!/bin/sh\nexport PATH="${{PATH:-/usr/local/bin:/usr/bin:/bin}}":{programs}\n'
        f"run={shlex.quote(str(directory.run))}\n"
        f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || exit {REQUEUED}\n'
        f'[ -e "$run/{_START_FILE}" ] || exit {UNSEEN}\n'
        f"trap : TERM\ntrap 'echo USR1 >> \"$run/{agents.WARNED}\"' USR1\n"
        "unset SLURM_CPUS_PER_TASK SLURM_NTASKS_PER_NODE\n"
        f"srun --quiet --nodes={spec.node_count} --ntasks={spec.node_count} --ntasks-per-node=1 --cpu-bind=none "
        "--kill-on-bad-exit=0 --wait=0 --mpi=none --export=ALL --input=none "
        f"{shlex.join([*in_container, f'{directory.run}/{_START_FILE}'])} &\n"
        # A signal interrupts ``wait``, not srun; the next ``wait`` returns the code of an srun that has ended.
        "while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done\n"
        f'[ -s "$run/{agents.FAILED}" ] && code=$(cat "$run/{agents.FAILED}")\n'
        'exit "$code"\n'
    )


def arguments(
    spec: JobSpec, options: SlurmOptions, secrets: Mapping[str, str], folder: Path, output: str, *more: str
) -> list[str]:
    """Return the options of sbatch for a job, or an array, that runs in ``folder`` and writes to ``output`` there."""
    limit, seconds = options.time_limit, spec.max_run_duration_seconds
    if not limit and seconds is not None:  # helps Slurm's backfill, and ends a job without a supervisor
        limit = str(math.ceil(seconds / 60) + _EXTRA_MINUTES)
    sbatch_options = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "time": limit,
        "gpus-per-node": options.gpus_per_node,
        "cpus-per-task": options.cpus_per_task,
        "constraint": options.constraint,
    }
    return [
        f"--job-name={job_name(spec)}",
        f"--nodes={spec.node_count}",
        f"--ntasks={spec.process_count}",
        f"--ntasks-per-node={spec.process_count_per_node}",
        # Slurm expands %j and similar patterns in file names.
        f"--output={str(folder).replace('%', '%%')}/{output}",
        "--open-mode=append",
        f"--chdir={folder}",
        "--no-requeue",
        f"--signal=B:USR1@{options.checkpoint_seconds}",
        f"--export={','.join(secrets) or 'NONE'}",
        *(f"--{name}={value}" for name, value in sbatch_options.items() if value),
        *options.more,
        *more,
    ]


def job_name(spec: JobSpec) -> str:
    """Return the job name for squeue: name and id; jobs of a group, such as a sweep, share one name."""
    name, id_ = (spec.group.name, spec.group.id) if spec.group else (spec.name, spec.id)
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)[:40].strip('-')}-{id_}"
