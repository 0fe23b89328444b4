"""A Slurm cluster through its own commands: ``sbatch``, ``squeue``, ``scontrol``, ``scancel``."""
