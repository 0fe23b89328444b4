"""The settings of a Slurm cluster: what ``sbatch`` is asked for beyond nodes and processes."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from distdl_jupyter.clusters.agents.options import NETWORK_HELP
from distdl_jupyter.clusters.slurm import sinfo
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.options import MOST_RESTARTS

#: Options of sbatch that a job sets itself: with others it could not be followed.
_OWN = ("--array", "--wrap", "--parsable", "--output", "--error", "--export", "--export-file", "--job-name", "--nodes",
        "--ntasks", "--ntasks-per-node", "--chdir", "--requeue", "--signal", "--wait", "--test-only",
        "--open-mode")  # fmt: skip
_OWN_LETTERS = "aoeJNnDW"
#: Letters of sbatch whose value may follow in the same word: what stands behind them is no letter (sbatch(1)).
_WITH_VALUE = "AbBcCdFGiLmMpqStwx"
_GPUS = re.compile(r"(?:(?:gpu:)?[A-Za-z0-9_.-]+:)?\d+")
#: The most that sbatch takes for ``--signal``.
_MOST_SECONDS = 65_535
_WORD = re.compile(r"[A-Za-z0-9_.,@%+-]+")


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """What every job on this cluster asks Slurm for."""

    partition: str = field(
        default="", metadata={"help": "partition (default: Slurm's default partition)", "first": True}
    )
    account: str = field(default="", metadata={"help": "account that is charged"})
    qos: str = field(default="", metadata={"help": "quality of service"})
    time_limit: str = field(
        default="",
        metadata={
            "help": "longest run time of a job, in Slurm's notation: 30 (minutes), 2:00:00, 1-12 (days-hours)",
            "first": True,
        },
    )
    requeue: int = field(
        default=0,
        metadata={
            "help": "how often a job is requeued and resumed from checkpoint_dir() after its time limit, preemption or "
            "a lost node ended it; jobs that fail are not requeued (default: 0)"
        },
    )
    checkpoint_seconds: int = field(
        default=60,
        metadata={
            "help": "how many seconds before the time limit ranks are asked to save (should_checkpoint(), SIGUSR1); "
            "Slurm may ask up to a minute earlier"
        },
    )
    gpus_per_node: str = field(
        default="", metadata={"help": "GPUs on each node, for example 4 or a100:4", "first": True}
    )
    cpus_per_task: int | None = field(default=None, metadata={"help": "cores for each process"})
    constraint: str = field(default="", metadata={"help": "features that the nodes must have"})
    extra: str = field(default="", metadata={"help": "further sbatch options, as on its command line"})
    python: str = field(
        default="", metadata={"help": "Python that runs the ranks on the nodes (default: the path of this Python)"}
    )
    setup: str = field(
        default="",
        metadata={"help": "shell commands to run on every node before the start, for example 'module load cuda'"},
    )
    container_image: str = field(
        default="",
        metadata={"help": "container image for the ranks, in pyxis notation: nvcr.io#nvidia/cuda:12.6.3, /x.sqsh"},
    )
    container_mounts: str = field(
        default="", metadata={"help": "further folders to mount in the container, in pyxis notation: /data:/data:ro"}
    )
    directory: str = field(
        default="", metadata={"help": "folder that all nodes share (default: the job's folder, if all nodes share it)"}
    )
    network: str = field(default="", metadata={"help": NETWORK_HELP})
    data_directory: str = field(
        default="", metadata={"help": "folder for data on the disk of each node (default: the user's cache folder)"}
    )

    def __post_init__(self) -> None:
        for name in ("time_limit", "gpus_per_node"):
            object.__setattr__(self, name, _text(getattr(self, name)))
        self._check_words()
        self._check_time()
        self._check_counts()
        self._check_extra()

    @property
    def gpus(self) -> int:
        """How many GPUs each node gives to a job."""
        return sinfo.gpus_in(self.gpus_per_node)[0]

    @property
    def more(self) -> list[str]:
        """The words of ``extra``."""
        return shlex.split(self.extra)

    def _check_words(self) -> None:
        for name in ("partition", "account", "qos"):
            if (value := getattr(self, name)) and not _WORD.fullmatch(value):
                raise InvalidSpec(
                    f"{name} is {value!r}, but must be a valid Slurm name.", code="slurm-name-invalid", field=name
                )

        for name in ("container_image", "container_mounts"):
            if re.search(r"[\s\"'\\]", getattr(self, name)):
                raise InvalidSpec(
                    f"{name} contains a space, a quote or a backslash.", code="slurm-path-invalid", field=name
                )
        if self.container_mounts and not self.container_image:
            raise InvalidSpec(
                "container_mounts is set, but container_image is not.",
                code="slurm-mounts-without-image",
                field="container_mounts",
                hint="Set container_image, or remove container_mounts.",
            )

    def _check_time(self) -> None:
        try:
            sinfo.minutes(self.time_limit)
        except ValueError:
            raise InvalidSpec(
                f"time_limit is {self.time_limit!r}, but must be minutes or a time.",
                code="slurm-time-limit-invalid",
                field="time_limit",
                hint="Write 30 (minutes), 2:00:00 (hours), 1-12 (days-hours) or UNLIMITED.",
            ) from None

    def _check_counts(self) -> None:
        for name, most in (("requeue", MOST_RESTARTS), ("checkpoint_seconds", _MOST_SECONDS)):
            number: object = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
                raise InvalidSpec(
                    f"{name} is {number!r}, but must be an integer from 0 to {most:,}.",
                    code="slurm-number-invalid",
                    field=name,
                )
        if self.gpus_per_node and not _GPUS.fullmatch(self.gpus_per_node):
            raise InvalidSpec(
                f"gpus_per_node is {self.gpus_per_node!r}, but must be a number, or a type and a number.",
                code="slurm-gpus-invalid",
                field="gpus_per_node",
                hint="Write 4 or a100:4.",
            )
        cores: object = self.cpus_per_task
        if cores is not None and (isinstance(cores, bool) or not isinstance(cores, int) or cores < 1):
            raise InvalidSpec(
                f"cpus_per_task is {cores!r}, but must be an integer of at least 1.",
                code="slurm-cpus-invalid",
                field="cpus_per_task",
            )

    def _check_extra(self) -> None:
        try:
            words = self.more
        except ValueError as error:
            raise InvalidSpec(
                f"extra cannot be read as a command line: {error}.", code="slurm-extra-unreadable", field="extra"
            ) from None
        own = next(filter(_is_own, words), None)
        if own is not None:
            raise InvalidSpec(
                f"extra contains {own}, which is set automatically.",
                code="slurm-extra-reserved",
                field="extra",
                hint="Remove it. Set the number of ranks with node_count and process_count_per_node.",
            )
        before = ""
        for word in words:
            if not word.startswith("-") and (not before.startswith("-") or "=" in before):
                raise InvalidSpec(
                    f"extra contains {word!r} without an option, so sbatch would run it as a script.",
                    code="slurm-extra-word",
                    field="extra",
                    hint="Remove it, or write it as --option=value.",
                )
            before = word


def _is_own(word: str) -> bool:
    """Say whether a word is an option that a job sets itself, also abbreviated or glued: --out=x, -ox, -Hox."""
    if word.startswith("--"):
        name = word.partition("=")[0]
        # sbatch takes any beginning of a name that no other one has.
        return len(name) > len("--") and any(own.startswith(name) for own in _OWN)
    for letter in word[1:] if word.startswith("-") else "":
        if letter in _OWN_LETTERS:
            return True
        if letter in _WITH_VALUE:
            return False
    return False


def _text(value: object) -> str:
    """Return what a user gave as text: a number is one too."""
    return "" if value is None else str(value).strip()
