"""Persistent ranks: processes that stay alive between cells and keep their variables, as a kernel does.

They run as an ordinary job, so they outlive the kernel, the server and the page. This package is the client;
``worker.serving`` is the server in each rank.

    session = ranks.start(process_count_per_node=4)
    answer = session.run("import torch; torch.get_num_threads()")
    answer.values[0]
    session.stop()
"""

from distdl_jupyter.ranks.answer import (
    CellInterrupt,
    Notice,
    Output,
    RankResult,
    RanksBusy,
    UnsentValue,
)
from distdl_jupyter.ranks.session import Ranks, find_session, start

__all__ = [
    "CellInterrupt",
    "Notice",
    "Output",
    "RankResult",
    "Ranks",
    "RanksBusy",
    "UnsentValue",
    "find_session",
    "start",
]
