"""Persistent ranks: processes that stay alive between cells and keep their variables, as a kernel does.

They run as an ordinary job, so they outlive the kernel, the server and the page. This package is the kernel's side;
``worker.serving`` is the ranks' side.

    session = ranks.start(process_count_per_node=4)
    answer = session.run("import torch; torch.get_num_threads()")
    answer.values[0]
    session.stop()
"""

from distdl_jupyter.ranks.answer import Answer, Done, Event, Interrupted, Notice, Output, RanksBusy, RanksState, Unsent
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
