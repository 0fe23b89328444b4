"""Tells the error of a rank that lost its peer from an error of its own.

In synchronous training one failing rank makes all others fail too. What they say is an echo: it names no cause.
"""

from __future__ import annotations

import re

#: Messages with which Horovod, Gloo, NCCL, torch.distributed, TensorFlow and Open MPI report a lost peer.
_ECHO = re.compile(
    "|".join(
        (
            r"connection (was )?(closed|reset|refused)",
            r"(closed|reset|aborted) by (the )?peer",
            r"broken pipe|socket (is )?closed|lost connection|peer rank",
            r"remote process (has )?(exited|failed)",
            r"read timeout|timed out waiting",
            r"horovod has been shut down|shutdown in progress|HorovodInternalError",
            r"DistBackendError|DistNetworkError",
            r"ncclRemoteError|ncclSystemError|unhandled system error",
            r"MPI_ERR_PROC_FAILED",
            r"collective ops is aborted|failed to send RPC to coordination service|failed to connect to all addresses",
        )
    ),
    re.IGNORECASE,
)
#: What such an exception says of a fault of its own: rank 0 cannot listen, or NCCL has refused a GPU or a call.
_OWN = re.compile(
    r"EADDRINUSE|address already in use|Duplicate GPU detected|invalid usage|unhandled cuda error", re.IGNORECASE
)


def says_peer_is_gone(type_: str, message: str) -> bool:
    """Say whether an exception of this type and message only reports that another rank is gone."""
    said = f"{type_}: {message}"
    return _ECHO.search(said) is not None and _OWN.search(said) is None
