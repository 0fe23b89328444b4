"""The options of a Slurm cluster: what jobs request from ``sbatch`` beyond nodes and processes."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from distdl_jupyter.clusters.agents.agent import NETWORK_HELP
from distdl_jupyter.clusters.slurm import commands
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.options import MOST_RESTARTS

#: Options of sbatch that every job sets itself, as words and as letters.
_RESERVED = (
    "--array --wrap --parsable --output --error --export --export-file --job-name --nodes --ntasks --ntasks-per-node "
    "--chdir --requeue --signal --wait --test-only --open-mode"
)
_RESERVED_LETTERS = "aoeJNnDW"
#: Letters whose value may follow in the same word (sbatch(1)).
_WITH_VALUE = "AbBcCdFGiLmMpqStwx"
_GPUS = r"|(?:(?:gpu:)?[A-Za-z0-9_.-]+:)?\d+"
#: Slurm's ways to write a time limit (sbatch(1), ``--time``).
_TIME = r"|\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|(?i:unlimited|infinite)"
_NAME = r"[A-Za-z0-9_.,@%+-]*"
_PATH = r"[^\s\"'\\]*"
#: The form of options with a text: pattern, what it must be, how to write it.
_FORMS = {
    "partition": (_NAME, "a valid Slurm name", ""),
    "account": (_NAME, "a valid Slurm name", ""),
    "qos": (_NAME, "a valid Slurm name", ""),
    "container_image": (_PATH, "without spaces, quotes and backslashes", ""),
    "container_mounts": (_PATH, "without spaces, quotes and backslashes", ""),
    "time_limit": (_TIME, "a time", "Write 30 (minutes), 2:00:00 (hours), 1-12 (days-hours) or UNLIMITED."),
    "gpus_per_node": (_GPUS, "a number, or a type and a number", "Write 4 or a100:4."),
}
#: The least and the greatest value of options with a number; ``--signal`` has the limit of 65,535 seconds.
_NUMBERS = {"requeue": (0, MOST_RESTARTS), "checkpoint_seconds": (0, 65_535), "cpus_per_task": (1, 1_000_000)}


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """What every job on this cluster requests from Slurm."""

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
            value = getattr(self, name)  # a number in Python is a text for Slurm
            object.__setattr__(self, name, "" if value is None else str(value).strip())
        self._check_values()
        self._check_extra()

    @property
    def gpus(self) -> int:
        """How many GPUs each node gives to a job."""
        return commands.gpus_in(self.gpus_per_node)[0]

    @property
    def more(self) -> list[str]:
        """The words of ``extra``."""
        return shlex.split(self.extra)

    def _check_values(self) -> None:
        for name, (pattern, form, hint) in _FORMS.items():
            if not re.fullmatch(pattern, value := getattr(self, name)):
                message = f"{name} is {value!r}, but must be {form}."
                raise InvalidSpec(message, code="slurm-option-invalid", field=name, hint=hint)
        for name, (least, most) in _NUMBERS.items():
            value = getattr(self, name)
            if name == "cpus_per_task" and value is None:
                continue
            if type(value) is not int or not least <= value <= most:
                raise InvalidSpec(
                    f"{name} is {value!r}, but must be an integer from {least} to {most:,}.",
                    code="slurm-number-invalid",
                    field=name,
                )
        if self.container_mounts and not self.container_image:
            raise InvalidSpec(
                "container_mounts is set, but container_image is not.",
                code="slurm-mounts-without-image",
                field="container_mounts",
                hint="Set container_image, or remove container_mounts.",
            )

    def _check_extra(self) -> None:
        try:
            arguments = self.more
        except ValueError as error:
            raise InvalidSpec(
                f"extra cannot be read as a command line: {error}.", code="slurm-extra-unreadable", field="extra"
            ) from None
        reserved = next(filter(_is_reserved, arguments), None)
        if reserved is not None:
            raise InvalidSpec(
                f"extra contains {reserved}, which is set automatically.",
                code="slurm-extra-reserved",
                field="extra",
                hint="Remove it. Set the number of ranks with node_count and process_count_per_node.",
            )
        before = ""
        for argument in arguments:
            if not argument.startswith("-") and (not before.startswith("-") or "=" in before):
                raise InvalidSpec(
                    f"extra contains {argument!r} without an option, so sbatch would run it as a script.",
                    code="slurm-extra-word",
                    field="extra",
                    hint="Remove it, or write it as --option=value.",
                )
            before = argument


def _is_reserved(argument: str) -> bool:
    """Return whether an argument is an option that every job sets, also abbreviated or joined: --out=x, -ox, -Hox."""
    if argument.startswith("--"):
        name = argument.partition("=")[0]
        # sbatch accepts any unambiguous beginning of a name.
        return len(name) > len("--") and any(option.startswith(name) for option in _RESERVED.split())
    for letter in argument[1:] if argument.startswith("-") else "":
        if letter in _RESERVED_LETTERS or letter in _WITH_VALUE:
            return letter in _RESERVED_LETTERS
    return False
