"""The ssh process of one host: its streams, its last words, and what its end means.

It waits for nobody but in ``reap``; frames are not known here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

from distdl_jupyter.clusters import environment
from distdl_jupyter.clusters.agents.wire import Link

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Seconds without a word after which the end of a connection is no surprise: ssh found out first.
_LONG_SILENCE = 3.0
#: The exit code of ssh itself when it fails.
_OF_SSH = 255


class SshProcess(Link):
    """One ssh process."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        super().__init__()
        self._name = name
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment.for_ssh(),
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.source, self.out, self.err = (
            pipe.fileno() for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        for fd in (self.source, self.out, self.err):
            os.set_blocking(fd, False)

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.poll()

    def close_input(self) -> None:
        """End its standard input; idempotent."""
        if self.source >= 0:
            self.source = -1
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def reap(self, patience: float = 0.0) -> None:
        """Wait for its end, after ``patience`` seconds by force."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close what is open of it."""
        self.close_input()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def why_ended(self, silent: float) -> str:
        """Return what the end of its output means, when nothing was heard for ``silent`` seconds."""
        self.reap(2.0)
        self.listen_to_errors()
        code, last = self._process.returncode, self.last_line
        if code == _OF_SSH and silent > _LONG_SILENCE:
            return f"{self._name} has not answered for {silent:.0f} s."
        if code == _OF_SSH:
            return f"The connection to {self._name} broke{last}."
        return f"The agent on {self._name} ended with code {code}{last}."
