"""The options of a Slurm cluster, the files of a job (package, agent files, batch script), and job arrays.

The files contain no secret values, because sbatch passes those in its environment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import math
import re
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from distdl_jupyter import permissions
from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.agents import staging
from distdl_jupyter.clusters.agents.agent import NETWORK_HELP
from distdl_jupyter.clusters.base import Context, RunNotice
from distdl_jupyter.clusters.slurm import commands
from distdl_jupyter.core import files
from distdl_jupyter.core.errors import InvalidSpec, LaunchFailed
from distdl_jupyter.core.humanize import plural
from distdl_jupyter.core.options import MAX_RESTARTS, check_range
from distdl_jupyter.core.plan import option
from distdl_jupyter.core.space import SweepPlan
from distdl_jupyter.core.spec import Group, JobSpec
from distdl_jupyter.core.store import JobFolder, JobStore
from distdl_jupyter.node import folder as agents
from distdl_jupyter.worker import owned

_START_FILE = "start"
#: Exit code of a script that Slurm has requeued (EX_TEMPFAIL).
REQUEUED_EXIT_CODE = 75
#: Exit code of a script on a node that cannot read the job's files (EX_NOINPUT).
NO_FILES_EXIT_CODE = 66
#: Minutes by which Slurm's time limit exceeds the limit that the supervisor enforces.
_LIMIT_MARGIN_MINUTES = 2
#: The long options of sbatch that this package sets for every job.
_RESERVED_OPTIONS = (
    "--array --wrap --parsable --output --error --export --export-file --job-name --nodes --ntasks --ntasks-per-node "
    "--chdir --requeue --signal --wait --test-only --open-mode"
)
#: Their short forms.
_RESERVED_LETTERS = re.compile("-[aoeJNnDW]")
#: Seconds that an array's task waits for a trial, because a trial only starts after the previous one has ended.
TASK_WAIT_SECONDS = 60
#: Number of times per second that a waiting task checks for its link.
_POLLS_PER_SECOND = 5
#: The link target of a task that can no longer be claimed.
_CLOSED_TARGET = "-"
#: Minimum and maximum of numeric options. Slurm limits the seconds of ``--signal`` to 65,535.
_NUMBER_LIMITS = {"requeue": (0, MAX_RESTARTS), "checkpoint_seconds": (0, 65_535), "cpus_per_task": (1, 1_000_000)}


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """The options of every job on this cluster."""

    #: Agents find out whether the nodes share the job's folder.
    shared: ClassVar[bool | None] = None
    #: Slurm decides how many processes fit on a node.
    oversubscribe: ClassVar[bool] = True
    partition: str = option("", "partition (default: Slurm's default partition)", first=True)
    account: str = option("", "account that is charged")
    qos: str = option("", "quality of service")
    time_limit: str = option("", "longest run time of a job: 30 (minutes), 2:00:00 or 1-12 (days-hours)", first=True)
    requeue: int = option(0, "how often a job is requeued after its time limit, preemption or a lost node ended it")
    checkpoint_seconds: int = option(60, "seconds before the time limit when ranks are asked to save a checkpoint")
    gpus_per_node: str = option("", "GPUs on each node, for example 4 or a100:4", first=True)
    cpus_per_task: int | None = option(None, "cores for each process")
    constraint: str = option("", "features that the nodes must have")
    extra: str = option("", "further sbatch options, as on its command line")
    python: str = option("", "Python that runs the ranks on the nodes (default: the path of this Python)")
    setup: str = option("", "shell commands to run on every node before the start, for example 'module load cuda'")
    container_image: str = option("", "container image for the ranks, in pyxis notation: nvcr.io#nvidia/cuda:12.6.3")
    container_mounts: str = option("", "further folders to mount in the container, in pyxis notation: /data:/data:ro")
    directory: str = option("", "folder that all nodes share (default: the job's folder, if all nodes share it)")
    network: str = option("", NETWORK_HELP)
    data_directory: str = option("", "folder for data on the disk of each node (default: the user's cache folder)")

    def __post_init__(self) -> None:
        for name in ("time_limit", "gpus_per_node"):
            value = getattr(self, name)  # Python callers may pass numbers
            object.__setattr__(self, name, "" if value is None else str(value).strip())
        for name, (minimum, maximum) in _NUMBER_LIMITS.items():
            check_range(minimum, maximum)(getattr(self, name), name)
        if self.container_mounts and not self.container_image:
            message = "container_mounts is set without container_image. Set both, or remove container_mounts."
            raise InvalidSpec(message, code="slurm-mounts-without-image", field="container_mounts")
        try:
            arguments = shlex.split(self.extra)
        except ValueError as error:
            message = f"extra cannot be read as a command line: {error}."
            raise InvalidSpec(message, code="slurm-extra-unreadable", field="extra") from None
        for argument in arguments:
            name = argument.partition("=")[0]  # sbatch also accepts abbreviations: --out=x
            is_long = name.startswith("--") and name != "--"
            if _RESERVED_LETTERS.match(name) or (is_long and f" {name}" in f" {_RESERVED_OPTIONS}"):
                message = f"extra contains {argument}, which is set automatically. Remove it."
                hint = "Set the number of ranks with node_count and process_count_per_node."
                raise InvalidSpec(message, code="slurm-extra-reserved", field="extra", hint=hint)

    @property
    def gpus(self) -> int:
        """The number of GPUs that a job gets on each node."""
        return commands.count_gpus(self.gpus_per_node)[0]


class JobDirectory:
    """The files of a job that its nodes read: ``job`` is the folder of the ranks, and ``run`` the folder for Slurm."""

    def __init__(self, folder: JobFolder, directory: str, restart: int = 0) -> None:
        self.job = Path(directory).expanduser().absolute() / folder.id if directory else folder.path
        self.is_copied = self.job.resolve() != folder.path.resolve()
        #: Each attempt has a separate folder, because agents of an earlier attempt may still be writing.
        self.run = self.job / (f"slurm-{restart}" if restart else "slurm")
        self.batch = self.run / "batch"
        self.output = self.run / "job.out"
        #: The link to ``run`` that the job's task in an array follows, or None if the job is not in an array.
        self.link: Path | None = None
        #: Whether ranks may have written files that were not copied yet; ``remove`` keeps them.
        self.has_uncollected_files = False

    def write(self, folder: JobFolder, spec: JobSpec, options: SlurmOptions) -> None:
        """Write all files. Raises OSError."""
        if self.is_copied:
            permissions.make_folder(self.job.parent)
        permissions.make_private(self.job)
        permissions.make_private(self.run)
        if self.is_copied:
            self._copy(folder)
        zipfile.ZipFile(io.BytesIO(environment.build_package().content)).extractall(self.run / "lib")
        agent_files = [name for node in range(spec.node_count) for name in agents.get_file_names(node)]
        for name in (self.output.name, agents.FAILED_FILE, agents.WARNED_FILE, *agent_files):
            owned.write(self.run / name, b"")
        # The script of each node runs the option ``setup``, then the agent.
        shell = f"#!/bin/bash -l\nset -e\n{options.setup}\nset +e\n" if options.setup else "#!/bin/sh\n"
        python = options.python or ("" if options.container_image else spec.python) or "python3"
        start_script = (
            f'{shell}export PYTHONPATH={shlex.quote(f"{self.run}/lib")}"${{PYTHONPATH:+:$PYTHONPATH}}"\n'
            f"exec {shlex.quote(python)} -P -m distdl_jupyter.node.folder {shlex.quote(str(self.run))} "
            '"$SLURM_NODEID"\n'
        )
        owned.write(self.run / _START_FILE, start_script.encode())
        (self.run / _START_FILE).chmod(0o700)
        owned.write(self.batch, build_batch_script(self, spec, options).encode())

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
        handle = {"slurm_job": job, "folder": str(self.job), "run": self.run.name, "copied": self.is_copied}
        return handle | ({"link": str(link)} if link else {})

    def _copy(self, folder: JobFolder) -> None:
        for name in ("payload.json", "payload.pkl"):
            if (folder.path / name).exists():
                shutil.copy2(folder.path / name, self.job / name)
        if folder.code.is_dir():
            shutil.copytree(folder.code, self.job / folder.code.name, dirs_exist_ok=True)
        shutil.rmtree(self.job / "results", ignore_errors=True)  # values of an earlier attempt
        for name in ("results", "outputs"):
            (self.job / name).mkdir(mode=0o700, exist_ok=True)
        checkpoints = self.job / "outputs" / folder.checkpoints.name
        if folder.has_checkpoints and not checkpoints.exists():  # existing ones are newer: they were not copied back
            shutil.copytree(folder.checkpoints, checkpoints, symlinks=True)

    def collect(self, folder: JobFolder, ranks: int) -> list[str]:
        """Copy results and outputs into the job's folder; return why values were not copied. Raises OSError."""
        if not self.is_copied:
            return []
        self.has_uncollected_files = True
        problems = list[str]()
        for path in sorted((self.job / "results").iterdir()):
            status = path.lstat()
            reason = owned.check(status) or staging.explain_refusal(Path(path.name), status.st_size, range(ranks))
            if not reason:
                shutil.copy2(path, folder.results / path.name, follow_symlinks=False)
            elif not path.name.startswith("."):
                problems.append(f"{path} was not copied: {reason}.")
        # cp replaces files and links, and writes through no link.
        command = ["cp", "-a", "--remove-destination", "--", f"{self.job}/outputs/.", str(folder.outputs)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise OSError(errno.EIO, result.stderr.strip().partition("\n")[0], f"{self.job}/outputs")
        self.has_uncollected_files = bool(problems)
        return problems

    def remove(self) -> None:
        """Remove the files for the nodes; below the option ``directory``, only a folder that ``write`` created."""
        folder = self.job if self.is_copied and not self.has_uncollected_files else self.run
        if permissions.is_own(folder) and (not self.is_copied or (self.run / _START_FILE).is_file()):
            shutil.rmtree(folder, ignore_errors=True)


def make_unusable_error(error: OSError, folder: Path) -> LaunchFailed:
    """Return the error of a job whose files cannot be written."""
    problem = f"written to {error.filename or folder}: {error.strerror}" if error.strerror else f"used: {error}"
    hint = "Set the option 'directory' to a folder that you own and that all nodes share."
    return LaunchFailed(f"The job's files cannot be {problem}.", code="slurm-files-unusable", hint=hint)


def points_to(link: Path, run: Path) -> bool:
    """Return whether the array task of this link was claimed for the job whose folder is ``run``."""
    return link.is_symlink() and link.readlink() == run


def require_containers(options: SlurmOptions) -> None:
    """Raise SlurmFailed if an image is set, but Slurm cannot run it."""
    # Slurm plug-ins add their options to the output of --help.
    if options.container_image and "--container-image" not in commands.run("srun", "--help"):
        message = "srun has no option --container-image, because the plugin pyxis is not installed."
        hint = "Ask the administrators to install pyxis and enroot, or remove container_image."
        raise commands.SlurmFailed(message, code="slurm-container-unsupported", hint=hint)


def build_container_arguments(options: SlurmOptions, *folders: Path) -> list[str]:
    """Return srun's options for the image; absolute ``folders`` except / are mounted at the same path."""
    if not options.container_image:
        return []
    mounts = [f"{folder}:{folder}" for folder in folders if folder.is_absolute() and folder != Path("/")]
    mounts += [options.container_mounts] if options.container_mounts else []
    return [f"--container-image={options.container_image}", f"--container-mounts={','.join(mounts)}"]


def build_batch_script(directory: JobDirectory, spec: JobSpec, options: SlurmOptions) -> str:
    """Return the batch script; it exits with the code of the rank that failed first.

    The agent is the only task on its node, so it gets all resources of the job there; srun would limit several tasks to
    their shares of the cores. The script ignores TERM, which Slurm sends before it kills a job: if the script exited,
    Slurm would kill the agents before they can report the exits of ranks. USR1 is Slurm's earlier warning
    (``--signal``), which agents read from a file. A requeued script exits, as each attempt has new files and a new job.
    """
    in_container = build_container_arguments(options, directory.job, Path(spec.working_directory))
    # A login on a node may lack Slurm's commands on its PATH.
    programs = shlex.quote(str(Path(shutil.which("srun") or shutil.which("sbatch") or "/usr/bin/srun").parent))
    return (
        f'#!/bin/sh\nexport PATH="${{PATH:-/usr/local/bin:/usr/bin:/bin}}":{programs}\n'
        f"run={shlex.quote(str(directory.run))}\n"
        f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || exit {REQUEUED_EXIT_CODE}\n'
        f'[ -e "$run/{_START_FILE}" ] || exit {NO_FILES_EXIT_CODE}\n'
        f"trap : TERM\ntrap 'echo USR1 >> \"$run/{agents.WARNED_FILE}\"' USR1\n"
        "unset SLURM_CPUS_PER_TASK SLURM_NTASKS_PER_NODE\n"
        f"srun --quiet --nodes={spec.node_count} --ntasks={spec.node_count} --ntasks-per-node=1 --cpu-bind=none "
        "--kill-on-bad-exit=0 --wait=0 --mpi=none --export=ALL --input=none "
        f"{shlex.join([*in_container, f'{directory.run}/{_START_FILE}'])} &\n"
        # A signal interrupts ``wait``, not srun; the next ``wait`` returns the code of an srun that has ended.
        "while wait $!; code=$?; kill -0 $! 2>/dev/null; do :; done\n"
        f'[ -s "$run/{agents.FAILED_FILE}" ] && code=$(cat "$run/{agents.FAILED_FILE}")\n'
        'exit "$code"\n'
    )


def build_sbatch_arguments(
    spec: JobSpec, options: SlurmOptions, secrets: Mapping[str, str], folder: Path, output: str, *extra: str
) -> list[str]:
    """Return sbatch's options for a job or an array that runs in ``folder`` and writes to the file ``output`` there."""
    limit, seconds = options.time_limit, spec.max_run_duration_seconds
    if not limit and seconds is not None:  # helps Slurm's backfill, and ends a job without a supervisor
        limit = str(math.ceil(seconds / 60) + _LIMIT_MARGIN_MINUTES)
    names = ("partition", "account", "qos", "gpus_per_node", "cpus_per_task", "constraint")
    values = {name.replace("_", "-"): getattr(options, name) for name in names} | {"time": limit}
    return [
        f"--job-name={build_job_name(spec)}",
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
        *(f"--{name}={value}" for name, value in values.items() if value),
        *shlex.split(options.extra),
        *extra,
    ]


def build_job_name(spec: JobSpec) -> str:
    """Return the name for squeue: name and ID of the job, or of its group, such as a sweep."""
    name, id_ = (spec.group.name, spec.group.id) if spec.group else (spec.name, spec.id)
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)[:40].strip('-')}-{id_}"


# job arrays for sweeps ---------------------------------------------------------------------------

# The tasks of an array wait in Slurm's queue. The values of a trial may depend on earlier trials, so a task belongs to
# no trial: the supervisor of a trial claims the first free task by creating a link to the trial's files, named by the
# number of the task. A task that starts follows its link; without one, it waits briefly for the next trial and then
# exits. A restarted trial claims another task. So the array limits how many trials run at a time, and none runs twice.
#
# ``<folder of the sweep>/slurm/`` holds::
#
#     lock            the lock for claiming tasks
#     1/array.json    an array: its Slurm job and its number of tasks
#     1/7, 1/7.out    the link from task 7 to the files of its trial, and the output of its script


def claim_task(
    directory: JobDirectory, spec: JobSpec, options: SlurmOptions, secrets: Mapping[str, str], context: Context
) -> str:
    """Claim a task of the sweep's job array for a trial and return its ID; submit an array if no task is free.

    Return "" for a job that needs no task: it is not a trial, it is the last trial, its files are copied, or Slurm
    rejects arrays. Raises SlurmTimeout, OSError.
    """
    group, number = spec.group, spec.trial
    if group is None or number is None or directory.is_copied or not (root := _get_array_root(group)).parent.exists():
        return ""
    plan = SweepPlan.from_group(group)
    permissions.make_private(root)
    with _lock_arrays(root) as arrays:
        if arrays and (task := _claim_free_task(arrays[-1], directory, context)):
            return task
        # The first trials start concurrently, so any of them may be the one that submits the array.
        size = plan.trials - (number if arrays or number >= plan.parallel else 0)
        if size < 2:
            return ""
        folder = permissions.make_private(root / str(len(arrays) + 1))
        (folder / "batch").write_text(_build_task_script(folder), encoding="utf-8")
        args = f"--array=0-{size - 1}%{plan.parallel}", str(folder / "batch")
        try:
            job = commands.submit(build_sbatch_arguments(spec, options, secrets, folder, "%a.out", *args), secrets)
        except commands.SlurmTimeout:  # if Slurm has accepted the array, its tasks exit when they get no trial
            raise
        except commands.SlurmFailed as error:
            shutil.rmtree(folder)
            text = f"Slurm rejected an array of {plural(size, 'job')}, so each trial is queued separately."
            context.note(RunNotice("info", f"{text} ({error.message})", "no-array"))
            return ""
        files.write_json(folder / "array.json", {"job": job, "size": size})
        return _claim_free_task(folder, directory, context)


def close_array(group: Group) -> None:
    """Remove unclaimed tasks from the queue; claimed tasks continue. Raises SlurmFailed, OSError."""
    root = _get_array_root(group)
    if not root.is_dir():
        return
    with _lock_arrays(root) as arrays:
        for folder in arrays:
            (job, free_links), closed_tasks = _load_array(folder), []
            for link in free_links:
                with contextlib.suppress(FileExistsError):  # a trial has claimed it, or the task has closed itself
                    link.symlink_to(_CLOSED_TARGET)
                    closed_tasks.append(link.name)
            if closed_tasks:
                with contextlib.suppress(commands.UnknownJob):
                    commands.run("scancel", f"{job}_[{','.join(closed_tasks)}]")


def _get_array_root(group: Group) -> Path:
    return JobStore(kind="sweeps").get_folder(group.id).path / "slurm"


@contextlib.contextmanager
def _lock_arrays(root: Path) -> Iterator[list[Path]]:
    """Yield the folders of all arrays, the newest last, while no other process can claim a task. Raises OSError."""
    with (root / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield sorted((path for path in root.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def _load_array(folder: Path) -> tuple[str, list[Path]]:
    """Return the Slurm job of an array and the links of its free tasks in order. The job is "" if not submitted."""
    try:
        array = json.loads((folder / "array.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "", []
    links = (folder / str(task) for task in range(array["size"]))
    return array["job"], [link for link in links if not link.is_symlink()]


def _claim_free_task(folder: Path, directory: JobDirectory, context: Context) -> str:
    """Claim a free task for a job and return its ID, or "" if all are claimed.

    The job's handle is recorded first, so that another supervisor can claim the task if this one is killed.
    """
    job, free_links = _load_array(folder)
    for link in free_links:
        task = f"{job}_{link.name}"
        context.record_handle(directory.handle(task, link))
        if directory.claim_task(link):
            return task
    return ""


def _build_task_script(folder: Path) -> str:
    """Return the script that every task runs; ``ls`` makes new links visible on network file systems."""
    return (
        "#!/bin/sh\n"
        f'[ "${{SLURM_RESTART_COUNT:-0}}" = 0 ] || exit {REQUEUED_EXIT_CODE}\n'
        f"cd {shlex.quote(str(folder))} || exit 1\n"
        "task=$SLURM_ARRAY_TASK_ID polls=0\n"
        'until ls >/dev/null; [ -f "$task/batch" ]; do\n'
        '    [ -h "$task" ] && exit 0\n'
        "    polls=$((polls + 1))\n"
        f'    [ $polls -gt {_POLLS_PER_SECOND * TASK_WAIT_SECONDS} ] && ln -sn {_CLOSED_TARGET} "$task"\n'
        f"    [ $polls -gt {2 * _POLLS_PER_SECOND * TASK_WAIT_SECONDS} ] && exit 1\n"
        f"    sleep {1 / _POLLS_PER_SECOND}\n"
        "done\n"
        'exec /bin/sh "$task/batch"\n'
    )
