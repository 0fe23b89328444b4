"""Where training code keeps what it goes on from: ``checkpoint_dir()`` is a folder that survives restarts of the job.

What lies in it is laid out again for the next attempt and for a job that is resumed, and comes back as an output.
Nothing here reads or writes a checkpoint.
"""

from __future__ import annotations

import os
from pathlib import Path


def checkpoint_dir() -> Path:
    """Return the folder for checkpoints of this job, which exists; outside of a job ``checkpoints`` in the current one.

    All ranks of a node have the same one. On nodes that share no folder each node has its own, and of files of one name
    that of rank 0's node is kept: let rank 0 write, and every rank read.

    A rank may be ended while it writes, so write under another name and rename, which happens whole or not at all::

        path = distdl_jupyter.checkpoint_dir() / "last.pt"
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    Raises OSError when it cannot be made.
    """
    job = os.environ.get("DISTDL_JOB_DIR")
    folder = Path(job, "outputs", "checkpoints") if job else Path.cwd() / "checkpoints"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
