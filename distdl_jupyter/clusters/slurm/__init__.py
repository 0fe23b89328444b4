"""Slurm clusters, used through Slurm's commands: ``sbatch``, ``squeue``, ``scontrol``, ``scancel``."""
