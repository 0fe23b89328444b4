"""Jobs over HTTP: submit, list, show, cancel, run again, delete, and what came of them. All of it is ``client``'s."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from distdl_jupyter.core import environment
from distdl_jupyter.core.environment import JobEnvironment
from distdl_jupyter.core.state import State
from distdl_jupyter.jobs import client, job_queue
from distdl_jupyter.jobs.readers import CurveReader
from distdl_jupyter.server import submitting
from distdl_jupyter.server.base import Handler, answers, checked_id, executes
from distdl_jupyter.server.schema import (
    Cancel,
    CheckpointTable,
    Fork,
    JobList,
    JobsQuery,
    Move,
    NewJob,
    Priority,
    Result,
    TimeQuery,
)
from distdl_jupyter.views import card, checkpoints, ended_cache, job_page
from distdl_jupyter.views.correctness import job_check
from distdl_jupyter.views.job_table import JobRow
from distdl_jupyter.views.schema import JobCheck, JobDetail, JobTime
from distdl_jupyter.views.step_times import job_time

if TYPE_CHECKING:
    from distdl_jupyter.jobs.readers import Reading
    from distdl_jupyter.views.ended_cache import Listed


def attached(id_: str) -> client.Job:
    """Return the handle of a job by its whole id. Raises JobNotFound."""
    return client.attach(checked_id(id_))


class Jobs(Handler):
    """All jobs."""

    @answers(JobList, query=JobsQuery)
    async def get(self, query: JobsQuery) -> JobList:
        """List the jobs, newest first."""
        return chosen(await self.run_in_thread(self.app.listing.all), query)

    @answers(JobRow, status=201, body=NewJob, refuses=(424, 502, 507))
    @executes
    async def post(self, body: NewJob) -> JobRow:
        """Run source text as a cell on every rank."""
        job = client.attach(await submitting.started(self, body))
        if body.check:
            from distdl_jupyter.studies import correctness  # a server that shows jobs captures no code

            correctness.finish_later(job)
        return await self.run_in_thread(row_of, job)


def chosen(jobs: list[Listed], query: JobsQuery) -> JobList:
    """Return the page of the jobs that a query asks for."""
    rows = [one.row for one in jobs]
    asked = [row for row in rows if _in_state(row, query.state) and _has_words(row, query.q)]
    return JobList(
        jobs=tuple(asked[query.offset : query.offset + query.limit]),
        total=len(asked),
        active=sum(one.active for one in jobs),
        failed=sum(row.state == State.FAILED.value for row in rows),
    )


def _in_state(row: JobRow, state: str) -> bool:
    if state == "active":
        return not State(row.state).ended
    return not state or row.state == state


def _has_words(row: JobRow, words: str) -> bool:
    text = " ".join((row.name, row.id, row.compute_target, row.backend, row.notebook)).lower()
    return all(word in text for word in words.lower().split())


def row_of(job: client.Job) -> JobRow:
    """Return the row of a job as it is now."""
    reading = CurveReader(job.folder)
    reading.catch_up()
    return ended_cache.listed(job.folder, reading.view, reading.spec).row


class JobById(Handler):
    """One job."""

    @answers(JobDetail, refuses=(404,))
    async def get(self, id_: str) -> JobDetail:
        """Return everything about a job that is not streamed."""
        async with self.app.sources.opened(checked_id(id_)) as live:
            return await self.run_in_thread(live.use, _detail)

    @answers(status=204, refuses=(404, 409, 507))
    async def delete(self, id_: str) -> None:
        """Delete an ended job with its log, values and outputs."""
        await self.run_in_thread(lambda: attached(id_).remove())


def _detail(reading: Reading) -> JobDetail:
    return job_page.job_detail(
        reading.view, reading.spec, time.time(), environment=environment.read(reading.folder),
        has_checkpoints=reading.has_checkpoints,
    )  # fmt: skip


class EnvironmentOfJob(Handler):
    """What a job ran with."""

    @answers(JobEnvironment, refuses=(404,))
    async def get(self, id_: str) -> JobEnvironment:
        """Return Python and packages of rank 0, and the git state of the code with its uncommitted changes."""
        return await self.run_in_thread(lambda: attached(id_).environment())


class TimeOfJob(Handler):
    """Where the time of a job's training steps went."""

    @answers(JobTime, query=TimeQuery, refuses=(404,))
    async def get(self, id_: str, query: TimeQuery) -> JobTime:
        """Return the mean step time of each rank in parts, the rank that delays the others, and the newest steps."""
        return await self.run_in_thread(lambda: job_time(attached(id_).time(), query.last))


class CheckOfJob(Handler):
    """What a check has found, and the request to check the code of a job."""

    @answers(JobCheck, refuses=(404,))
    async def get(self, id_: str) -> JobCheck:
        """Return the progress and the findings of a check."""
        from distdl_jupyter.studies import correctness

        return await self.run_in_thread(lambda: job_check(correctness.standing(attached(id_))))

    @answers(JobRow, status=201, refuses=(400, 404, 424, 502, 507))
    @executes
    async def post(self, id_: str) -> JobRow:
        """Check the code of a job with short runs on several ranks and on one process."""
        from distdl_jupyter.studies import correctness

        job = await self.slowly(lambda: correctness.start_again(attached(id_)))
        correctness.finish_later(job)
        return await self.run_in_thread(row_of, job)


class CancelJob(Handler):
    """The request to stop a job."""

    @answers(status=202, body=Cancel, refuses=(404, 409, 507))
    async def post(self, id_: str, body: Cancel) -> None:
        """Stop a job: INT, TERM, KILL with a grace period in between, or KILL at once."""
        await self.run_in_thread(lambda: attached(id_).cancel(now=body.now))


class QueueOfJobs(Handler):
    """What waits."""

    @answers(job_queue.Queue)
    async def get(self) -> job_queue.Queue:
        """Return the jobs that hold resources of this machine, and the waiting jobs in order."""
        return await self.run_in_thread(job_queue.queue)


class PriorityOfJob(Handler):
    """The order of jobs that wait."""

    @answers(status=202, body=Priority, refuses=(404, 409, 507))
    async def post(self, id_: str, body: Priority) -> None:
        """Change the priority of a waiting job."""
        await self.run_in_thread(lambda: job_queue.prioritize(checked_id(id_), body.priority))


class MoveJob(Handler):
    """The request to start a waiting job elsewhere."""

    @answers(JobRow, status=201, body=Move, refuses=(400, 404, 409, 424, 502, 507))
    @executes
    async def post(self, id_: str, body: Move) -> JobRow:
        """Start a waiting job on another cluster instead; it leaves its queue first, so it never runs twice."""
        return await self.slowly(lambda: row_of(attached(id_).move(body.compute_target)))


class RerunJob(Handler):
    """The request to start a job once more."""

    @answers(JobRow, status=201, refuses=(400, 404, 502, 507))
    @executes
    async def post(self, id_: str) -> JobRow:
        """Start the same job again, with its original code and values."""
        return await self.slowly(lambda: row_of(attached(id_).rerun()))


class ResumeJob(Handler):
    """The request to go on with a job that has ended."""

    @answers(JobRow, status=201, refuses=(400, 404, 409, 424, 502, 507))
    @executes
    async def post(self, id_: str) -> JobRow:
        """Start a new job with the same code that continues from the checkpoints of this one."""
        return await self.slowly(lambda: row_of(attached(id_).resume()))


class CheckpointsOfJob(Handler):
    """What a job's training left to go on from."""

    @answers(CheckpointTable, refuses=(404,))
    async def get(self, id_: str) -> CheckpointTable:
        """List the checkpoints of a job with the metrics at their steps, newest first."""
        return await self.run_in_thread(_checkpoints, id_)


def _checkpoints(id_: str) -> CheckpointTable:
    known = attached(id_).checkpoints()
    return CheckpointTable(tuple(checkpoints.metric_names(known)), checkpoints.rows(known))


class ForkJob(Handler):
    """The request to go on from one checkpoint."""

    @answers(JobRow, status=201, body=Fork, refuses=(400, 404, 424, 502, 507))
    @executes
    async def post(self, id_: str, body: Fork) -> JobRow:
        """Start a new job with the same code that continues from one checkpoint of this one."""
        return await self.slowly(lambda: row_of(attached(id_).fork(path=body.path or None)))


class JobResult(Handler):
    """What came of a job."""

    @answers(Result, refuses=(404,))
    async def get(self, id_: str) -> Result:
        """Return the value of each rank in short form, or the failure."""
        return await self.run_in_thread(_result, id_)


def _result(id_: str) -> Result:
    view = CurveReader(attached(id_).folder).catch_up()
    return Result(
        state=card.state_name(view),
        ok=view.state is State.COMPLETED if view.state.ended else None,
        values=tuple(rank.result or "" for rank in view.ranks) if view.state is State.COMPLETED else (),
        failure=card.failure_card(view),
    )
