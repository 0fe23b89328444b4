"""One request to some ranks, from the first byte to the last rank's answer.

Events are reported in order of arrival: a rank's output before its end. While ranks are waited for, sentences say for
whom and what can be done; a rank that dies ends the session, and its reason is raised.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from distdl_jupyter.core.humanize import ranks as ranks_in_words
from distdl_jupyter.ranks.answer import Answer, Done, Event, Interrupted, Notice, Output
from distdl_jupyter.ranks.cell_output import CellOutput
from distdl_jupyter.ranks.ending import Stuck, is_led_anew, led_anew, why_ended
from distdl_jupyter.ranks.interrupts import Interrupts, counted
from distdl_jupyter.ranks.link import Gone, Link
from distdl_jupyter.ranks.turn import busy

if TYPE_CHECKING:
    from distdl_jupyter.jobs.client import Job
    from distdl_jupyter.worker.serving.frames import Message

#: Seconds between two looks at the log: the first while a short cell runs, the last while a long one does.
_SHORTEST, _LONGEST = 0.0005, 0.02
#: Seconds after which ranks that go on without a failed one are spoken of, and those that do not hear an interrupt.
_WAITS_FOR_FAILED = 2.0
_DEAF = 5.0
#: Seconds that the log may take to bring a rank's last lines.
_LOG_TIMEOUT = 15.0

OnEvent = Callable[[Event], None]
Request = tuple[dict[str, Any], bytes]


class PendingRequest:
    """One request under way. ``links`` are those of all ranks, ``requests`` what some of them are asked.

    ``notes`` are the ``stamps`` of those that led to the links.
    """

    def __init__(
        self, job: Job, links: Mapping[int, Link], notes: Mapping[str, int], requests: Mapping[int, Request],
        on_event: OnEvent | None,
    ) -> None:  # fmt: skip
        self._job = job
        self._links = links
        self._requests = requests
        self._on_event: OnEvent = _silently if on_event is None else on_event
        self._answer = Answer()
        self._running = set(requests)
        self._done: dict[int, tuple[Done, float]] = {}
        self._begin = time.perf_counter()
        self._pause = _SHORTEST
        self._interrupts_passed = 0
        self._interrupted_at = self._failed_at = float("inf")
        self._warned: set[str] = set()
        number = next(iter(requests.values()))[0]["id"]
        spoken = [rank for rank, (asked, _) in requests.items() if asked["do"] in ("run", "distributed")]
        self._notes = notes
        self._output = CellOutput(job.folder, spoken, number)

    def wait(self) -> Answer:
        """Ask and wait for all answers. Raises what ``session.run`` raises."""
        with counted() as interrupts, selectors.DefaultSelector() as selector:
            for link in self._links.values():
                selector.register(link, selectors.EVENT_READ, link)
            try:
                for rank, (header, body) in self._requests.items():
                    self._links[rank].send(header, body)
                while self._running or self._done:
                    self._look(selector)
                    self._pass_interrupts(interrupts)
                    self._warn()
            except Gone:
                # What the rank that is gone and the others still said comes before the reason.
                anew = is_led_anew(self._job, self._notes, self._read_output)
                self._read_output()
                raise (led_anew() if anew else why_ended(self._job)) from None
        self._answer.seconds = time.perf_counter() - self._begin
        if self._interrupts_passed:
            raise Interrupted(self._answer)
        return self._answer

    def _look(self, selector: selectors.BaseSelector) -> None:
        came = False
        for key, _ in selector.select(self._pause):
            for message in key.data.receive():
                self._take(key.data.rank, message)
                came = True
        came = self._read_output() or came
        self._pause = _SHORTEST if came or not self._running else min(_LONGEST, self._pause * 1.5)

    def _take(self, rank: int, message: Message) -> None:
        said = message.header
        if said.get("say") == "busy":
            raise busy(str(said.get("doing") or ""))
        if said.get("say") != "done" or rank not in self._running:
            return
        done = Done(
            rank=rank, ok=bool(said.get("ok")), repr=str(said.get("repr") or ""), shown=said.get("shown") or {},
            error=said.get("error"), seconds=float(said.get("seconds") or 0.0), unsent=str(said.get("unsent") or ""),
        )  # fmt: skip
        self._running.discard(rank)
        if done.error is not None:
            self._answer.errors[rank] = done.error
            self._failed_at = min(self._failed_at, time.monotonic())
        else:
            self._answer.values.put(rank, message.body, done)
        self._answer.dones[rank] = done
        self._done[rank] = (done, time.monotonic())

    def _read_output(self) -> bool:
        """Report what was printed, then the ends of ranks whose output is complete."""
        outputs = self._output.read()
        for output in _joined(outputs):
            self._on_event(output)
        for rank, (done, since) in list(self._done.items()):
            late = time.monotonic() - since > _LOG_TIMEOUT
            if late:
                self._on_event(
                    Notice(f"The last lines of rank {rank} were not received. They will be in the job's log.")
                )
            if late or self._output.complete(rank):
                del self._done[rank]
                self._on_event(done)
        return bool(outputs)

    def _pass_interrupts(self, interrupts: Interrupts) -> None:
        while self._interrupts_passed < interrupts.count:
            self._interrupts_passed += 1
            if "deaf" in self._warned:
                raise Stuck(self._job, sorted(self._running)).end()
            self._interrupted_at = min(self._interrupted_at, time.monotonic())
            for rank in self._running:
                self._links[rank].send({"do": "interrupt"})

    def _warn(self) -> None:
        if not self._running:
            return
        now, who = time.monotonic(), _capital(ranks_in_words(sorted(self._running)))
        verb = "runs" if len(self._running) == 1 else "run"
        if now - self._interrupted_at > _DEAF:
            self._once("deaf", f"{who} still {verb} {_DEAF:g} s after the interrupt, perhaps in a collective "
                "operation whose peers are gone. Interrupt again to stop the ranks.")  # fmt: skip
        elif now - self._failed_at > _WAITS_FOR_FAILED and self._interrupts_passed == 0:
            failed, whom = sorted(self._answer.errors), "it" if len(self._answer.errors) == 1 else "them"
            self._once("failed", f"{_capital(ranks_in_words(failed))} failed; {who[0].lower()}{who[1:]} still "
                f"{verb}, perhaps waiting for "
                f"{whom}. Interrupt to stop the wait.")  # fmt: skip

    def _once(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self._on_event(Notice(text))


def _joined(outputs: list[Output]) -> list[Output]:
    """Return neighbouring pieces of one stream as one."""
    found: list[Output] = []
    for output in outputs:
        if found and (found[-1].rank, found[-1].stream) == (output.rank, output.stream):
            found[-1] = Output(output.rank, output.stream, found[-1].text + output.text)
        else:
            found.append(output)
    return found


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _silently(_event: Event) -> None:
    """Report to nobody."""
