"""Persistent ranks: processes that stay alive between cells and share a namespace, as a kernel does.

They are a job like any other, so they outlive kernel, server and page. This package is the kernel's side; the ranks'
side is ``worker.serving``.

    session = ranks.start(process_count_per_node=4)
    answer = session.run("import torch; torch.get_num_threads()")
    answer.values[0]
    session.stop()
"""

from distdl_jupyter.ranks.answer import (
    Answer,
    Done,
    Event,
    Interrupted,
    Notice,
    Output,
    RanksBusy,
    RanksState,
    Unsent,
)
from distdl_jupyter.ranks.session import Ranks, current, start

__all__ = [
    "Answer",
    "Done",
    "Event",
    "Interrupted",
    "Notice",
    "Output",
    "Ranks",
    "RanksBusy",
    "RanksState",
    "Unsent",
    "current",
    "start",
]
