"""How a job's processes take signals: as a Python that was started from a terminal, whoever has submitted the job."""

from __future__ import annotations

import signal
from typing import Any

#: What Python sets at its start; everything else has the operating system's default.
_PYTHONS: dict[int, Any] = {signal.SIGPIPE: signal.SIG_IGN, signal.SIGINT: signal.default_int_handler}
if hasattr(signal, "SIGXFSZ"):
    _PYTHONS[signal.SIGXFSZ] = signal.SIG_IGN
_UNSET = (signal.SIGKILL, signal.SIGSTOP)


def reset() -> None:
    """Forget handlers of this process's own, and what was inherited: a script's ``command &`` ignores INT and QUIT."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - set(_UNSET):
        wanted = _PYTHONS.get(number, signal.SIG_DFL)
        if signal.getsignal(number) is not wanted:
            signal.signal(number, wanted)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
