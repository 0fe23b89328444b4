"""A job on Azure ML: output from the run's logs, ends from what its nodes wrote there, else from Azure's state.

Everything here can be taken up again by another supervisor: the workspace's names and the job's are all it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distdl_jupyter.clusters.azureml import code, outputs, states
from distdl_jupyter.clusters.azureml.logs import Logs
from distdl_jupyter.clusters.azureml.watch import Watch
from distdl_jupyter.clusters.base import Context, Exit, Notice, Run, Start, Stream
from distdl_jupyter.core import limits
from distdl_jupyter.core.errors import DistDLError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from distdl_jupyter.clusters.azureml.client import Workspace
    from distdl_jupyter.core.spec import JobSpec

#: What is kept in the job's folder of the words that no rank said.
KEPT = "azureml-log.jsonl"


class AzureMLRun(Run):
    """One submitted job. ``read`` says how much of each (rank, stream) was heard before."""

    def __init__(
        self, spec: JobSpec, workspace: Workspace, name: str, context: Context, *, studio: str = "",
        read: Mapping[tuple[int, str], int] | None = None, notices: Sequence[Notice] = (),
    ) -> None:  # fmt: skip
        self._workspace = workspace
        self._name = name
        self._folder = context.folder
        self._studio = studio
        self._ranks = spec.process_count
        self._notices = list(notices)
        limits.allow_files(4 * spec.process_count)
        kept = context.folder.path / KEPT
        self._logs = Logs(workspace, context.own["DISTDL_NONCE"], spec.process_count, kept, read or {})
        self._watch = Watch(workspace, name, self._logs)
        self._open = set(range(spec.process_count))
        self._failed = False
        self._sent: list[str] = []
        self._watch.start()

    @property
    def streams(self) -> tuple[Stream, ...]:
        """What Azure ML says itself, then each rank's output."""
        return self._logs.streams

    def started(self) -> list[Start]:
        """Return nothing: ranks tell their pids themselves."""
        return []

    def waiting(self) -> str:
        """Return why the job has not begun, with Azure's word."""
        if self._logs.spoken or self._watch.ended:
            return ""
        why = states.waiting(self._watch.status)
        return f"Azure ML job {self._name}: {why}" if why else ""

    def notices(self) -> list[Notice]:
        """Return what the user should know of the job."""
        found, self._notices = self._notices + self._watch.notices(), []
        return found

    # ends -------------------------------------------------------------------------------------

    def poll(self) -> list[Exit]:
        """Return the ranks that have ended and whose output was passed on."""
        killed = self._sent[:1] == ["KILL"]
        ranks = [] if killed else sorted(self._open & self._logs.ends.keys())
        if len(ranks) == len(self._open) and not self._watch.ended:
            ranks = ranks[:-1]  # the last one ends with the job: Azure still has to put away what they left
        found = [self._reported_exit(rank) for rank in ranks]
        self._failed = self._failed or any(exit_.code != 0 for exit_ in found)
        self._open -= {exit_.rank for exit_ in found}
        if self._watch.done and not found:
            found = [self._without_word(rank) for rank in sorted(self._open)]
            self._open.clear()
        return found

    def _reported_exit(self, rank: int) -> Exit:
        end = self._logs.ends[rank]
        return Exit(rank, end.get("code"), end.get("signal"), str(end.get("evidence") or ""))

    def _without_word(self, rank: int) -> Exit:
        """Return the end of a rank of which only Azure knows."""
        if self._sent:
            return Exit(rank, None, "KILL" if "KILL" in self._sent else "TERM")
        if self._watch.forgotten:
            return Exit(rank, None, None, f"Azure ML no longer knows the job {self._name}.")
        if self._watch.status == "Completed":
            return Exit(rank, 0, None, "Azure ML completed the job, but the log lacks the last messages of the rank.")
        if self._failed:
            return Exit(rank, None, "TERM", "stopped")
        if self._watch.status == "Canceled" and not self._watch.error:
            return Exit(rank, None, "TERM", "The job was canceled in Azure ML.")
        return Exit(rank, None, None, states.failure(self._watch.error))

    # signals ----------------------------------------------------------------------------------

    def alive(self) -> Sequence[object]:
        """Return the job itself as long as Azure has not ended it."""
        return [] if self._watch.ended else [f"Azure ML job {self._name}"]

    def signal(self, name: str) -> None:
        """Cancel the job, which is all that Azure ML can do; its ranks take that for an interrupt at first."""
        self._sent.append(name)
        self._watch.cancel()

    def no_stacks(self) -> str:
        """Return why: nothing but its end can be told to a job there."""
        return "Azure ML does not support stack traces of running ranks."

    def handle(self) -> dict[str, Any]:
        """Return the names by which the job is found again."""
        return {"workspace": self._workspace.address.to_json(), "run": self._name, "studio": self._studio}

    def collect(self) -> None:
        """Bring values and outputs home."""
        stayed = outputs.collect(self._workspace, self._name, self._folder, self._ranks)
        self._notices += [Notice("warning", text, "azureml-files-not-copied") for text in stayed]

    def close(self) -> None:
        """Stop watching."""
        self._logs.discard_rest()
        self._watch.stop()
        self._logs.close()
        code.remove(self._folder)


def cancel(workspace: Workspace, name: str) -> bool:
    """Ask for the end of a job that nobody watches; False when it has ended or never was. Raises DistDLError."""
    try:
        if str(workspace.job(name)["properties"].get("status")) in states.ENDED:
            return False
        workspace.cancel(name)
    except DistDLError as error:
        if getattr(error, "status", None) in (400, 404, 409):
            return False
        raise
    return True
