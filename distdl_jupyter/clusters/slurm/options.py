"""The settings of a Slurm cluster: what ``sbatch`` is asked for beyond nodes and processes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """What every job on this cluster asks Slurm for."""

    partition: str = field(default="", metadata={"help": "the partition (default: Slurm's default)"})
    account: str = field(default="", metadata={"help": "the account that is charged"})
    qos: str = field(default="", metadata={"help": "the quality of service"})
    time_limit: str = field(
        default="", metadata={"help": "how long a job may run, as Slurm writes it: 30 (minutes), 2:00:00, 1-12"}
    )
    gpus_per_node: str = field(default="", metadata={"help": "GPUs on each node, as 4 or a100:4"})
    cpus_per_task: int | None = field(default=None, metadata={"help": "cores for each process"})
    constraint: str = field(default="", metadata={"help": "features that the nodes must have"})
    extra: str = field(default="", metadata={"help": "more options of sbatch, as on its command line"})
    python: str = field(
        default="", metadata={"help": "the Python that runs ranks on the nodes (default: the job's own path)"}
    )
    setup: str = field(
        default="", metadata={"help": "shell commands before the start on every node, as 'module load cuda'"}
    )
    directory: str = field(
        default="", metadata={"help": "a folder that all nodes share (default: the job's own folder, when they do)"}
    )
