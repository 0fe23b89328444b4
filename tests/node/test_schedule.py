"""Who starts when: never more than there is, in order, past others where it delays none, and all in the end."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from distdl_jupyter.node.schedule import ORDER, Held, Need, Waiting, ordered, schedule

GPUS = tuple("abcd")
LIMITS = {"cores": 8.0, "memory": 64.0}


def waits(job, number, gpus=0, *, user="u", among=GPUS, priority=0.0, lasts=None, blocked=False, limits=(), **amounts):
    return Waiting(job, user, number, Need(gpus, among if gpus else (), amounts), priority, lasts, blocked,
                   dict(limits))  # fmt: skip


def places(held, *waiting, now=0.0):
    return {one.job: one for one in schedule(held, waiting, LIMITS, now)}


def test_what_fits_starts_now_and_nothing_is_given_twice():
    found = places([Held("r", ("a",))], waits("x", 1, 2), waits("y", 2, 1), waits("z", 3, 1))
    assert found["x"].gpus == ("b", "c")
    assert found["y"].gpus == ("d",)
    assert not found["z"].now
    assert (found["z"].lacks, found["z"].holders) == ((ORDER,), ("x", "y"))


def test_a_job_says_what_is_missing_who_has_it_when_it_is_free_and_what_is_free():
    held = [Held("r", ("a", "b"), {"cores": 6}, 360.0), Held("s", ("c",), {}, None)]
    found = places(held, waits("x", 1, 2, cores=2))["x"]
    assert (found.place, found.start, found.now) == (1, 360.0, False)
    assert (found.lacks, found.holders) == (("gpus",), ("r", "s"))
    assert found.free == {"cores": 2, "gpus": 1}


def test_a_small_job_passes_where_it_ends_before_the_one_in_front_can_start():
    held = [Held("r", ("a", "b"), {}, 360.0)]
    assert places(held, waits("big", 1, 4), waits("short", 2, 1, lasts=300.0))["short"].now
    found = places(held, waits("big", 1, 4, lasts=60.0), waits("long", 2, 1, lasts=400.0))["long"]
    assert (found.now, found.start, found.lacks, found.holders) == (False, 420.0, (ORDER,), ("big",))


def test_a_job_of_unknown_length_passes_only_where_it_takes_nothing_of_what_another_waits_for():
    held = [Held("r", ("a", "b"), {}, None)]
    assert not places(held, waits("big", 1, 4), waits("long", 2, 1, lasts=1.0))["long"].now
    assert places(held, waits("big", 1, 3, among=GPUS[:3]), waits("other", 2, 1))["other"].gpus == ("d",)
    assert places(held, waits("big", 1, 4), waits("cores", 2, cores=8))["cores"].now
    assert not places(held, waits("big", 1, 4, cores=4), waits("cores", 2, cores=5))["cores"].now


def test_a_priority_moves_a_job_among_those_of_its_user_only():
    jobs = [waits("a1", 1, user="a"), waits("b1", 2, user="b"), waits("a2", 3, user="a", priority=5),
            waits("b2", 4, user="b", priority=-1)]  # fmt: skip
    assert [one.job for one in ordered(jobs)] == ["a2", "b1", "a1", "b2"]


def test_a_blocked_job_keeps_its_place_and_holds_up_nobody():
    found = places([], waits("x", 1, 4, blocked=True), waits("y", 2, 4))
    assert (found["x"].place, found["x"].now, found["y"].place, found["y"].now) == (1, False, 2, True)


def test_a_job_that_can_never_start_holds_up_nobody():
    found = places([], waits("x", 1, 5), waits("w", 2, cores=9), waits("y", 3, 4))
    assert [found[job].now for job in "xwy"] == [False, False, True]


def test_jobs_of_a_group_are_as_many_as_its_limit_says():
    limits = {"g": 2.0}
    found = places([Held("r", (), {"g": 1.0})], *(waits(f"w{n}", n, limits=limits, g=1.0) for n in (1, 2, 3)))
    assert [found[f"w{n}"].now for n in (1, 2, 3)] == [True, False, False]


def test_what_should_have_ended_is_still_held():
    found = places([Held("r", GPUS, {}, 50.0)], waits("x", 1, 1), now=100.0)["x"]
    assert not found.now
    assert found.start == 105.0


# all cases --------------------------------------------------------------------------------------

needs = st.builds(
    lambda gpus, among, cores, memory: Need(
        min(gpus, len(among)), tuple(sorted(among)) if gpus else (),
        {name: value for name, value in (("cores", cores), ("memory", memory)) if value},
    ),
    st.integers(0, 4), st.sets(st.sampled_from(GPUS), min_size=1), st.integers(0, 8), st.integers(0, 64),
)  # fmt: skip
lengths = st.one_of(st.none(), st.integers(1, 50).map(float))


@st.composite
def queues(draw, most=8):
    return [
        Waiting(f"j{n}", draw(st.sampled_from("uv")), n, draw(needs), float(draw(st.integers(-1, 1))), draw(lengths),
                draw(st.integers(0, 9)) == 0)
        for n in range(draw(st.integers(1, most)))
    ]  # fmt: skip


def run(jobs, lasts, arrivals, until=10_000):
    """Let jobs come, start and end, second by second of events; return starts, first promises and what was held."""
    held, starts, promised, ends = {}, {}, {}, {}
    moments = sorted({0.0, *arrivals.values()})
    now = 0.0
    while len(starts) < len(jobs) and now < until:
        here = [one for one in jobs if arrivals[one.job] <= now and one.job not in starts]
        for job in [job for job, end in ends.items() if end <= now]:
            del held[job], ends[job]
        found = schedule(list(held.values()), here, LIMITS, now)
        for one in found:
            if one.start is not None:
                promised.setdefault(one.job, one.start)
        ready = next((one for one in found if one.now), None)
        if ready is not None:
            job = next(one for one in jobs if one.job == ready.job)
            starts[job.job] = now
            length = lasts[job.job]
            held[job.job] = Held(job.job, ready.gpus, job.need.amounts, None if job.lasts is None else now + job.lasts)
            ends[job.job] = now + length
            check(held.values())
            continue
        coming = [*(end for end in ends.values()), *(moment for moment in moments if moment > now)]
        if not coming:
            break
        now = min(coming)
    return starts, promised


def check(held):
    gpus = [gpu for one in held for gpu in one.gpus]
    assert len(gpus) == len(set(gpus))
    for name, limit in LIMITS.items():
        assert sum(one.amounts.get(name, 0) for one in held) <= limit


@settings(max_examples=30, deadline=None)
@given(queues(), st.data())
def test_never_more_than_there_is_and_everybody_starts(jobs, data):
    jobs = [one._replace(blocked=False) for one in jobs]
    lasts = {one.job: data.draw(st.integers(1, int(one.lasts or 50))) for one in jobs}
    arrivals = {one.job: float(data.draw(st.integers(0, 60))) for one in jobs}
    starts, _ = run(jobs, lasts, arrivals)
    assert starts.keys() == {one.job for one in jobs}


@settings(max_examples=30, deadline=None)
@given(queues(), st.data())
def test_nobody_starts_later_than_was_said_when_it_came(jobs, data):
    """Jobs that end as late as they may, and those that come later, delay nobody."""
    jobs = [one._replace(blocked=False, priority=0.0, user="u") for one in jobs]
    arrivals, last = {}, 0.0
    for one in jobs:
        last += data.draw(st.integers(0, 20))
        arrivals[one.job] = last
    lasts = {one.job: one.lasts or 50.0 for one in jobs}
    starts, promised = run(jobs, lasts, arrivals)
    for job, moment in promised.items():
        assert starts[job] <= moment


@settings(max_examples=30, deadline=None)
@given(queues(), st.data())
def test_whenever_others_end_no_job_starts_later_because_one_behind_it_passed(jobs, data):
    """Also where nobody knows when jobs end: the first of the queue starts as if it were alone in it."""
    jobs = [one._replace(blocked=False, priority=0.0, user="u") for one in jobs]
    first, rest = jobs[0], jobs[1:]
    busy = Held("r", tuple(data.draw(st.sets(st.sampled_from(GPUS)))), {"cores": float(data.draw(st.integers(0, 8)))})
    end = data.draw(st.integers(1, 100))

    def start_of(waiting):
        held, ends, now, left = {"r": busy}, {"r": float(end)}, 0.0, list(waiting)
        while True:
            for job in [job for job, moment in ends.items() if moment <= now]:
                del held[job], ends[job]
            ready = next((one for one in schedule(list(held.values()), left, LIMITS, now) if one.now), None)
            if ready is None:
                now = min(ends.values())
                continue
            if ready.job == first.job:
                return now
            job = next(one for one in left if one.job == ready.job)
            left.remove(job)
            length = job.lasts or 500.0
            held[job.job] = Held(job.job, ready.gpus, job.need.amounts, None if job.lasts is None else now + job.lasts)
            ends[job.job] = now + length

    assert start_of([first, *rest]) == start_of([first])


@settings(max_examples=30, deadline=None)
@given(queues(), st.lists(st.tuples(st.sampled_from(GPUS), st.one_of(st.none(), st.integers(-20, 90))), max_size=4))
def test_a_schedule_is_the_same_for_all_and_what_starts_now_fits_together(jobs, running):
    held = [Held(f"r{n}", (gpu,), {}, ends) for n, (gpu, ends) in enumerate(dict(running).items())]
    found = schedule(held, jobs, LIMITS, 0.0)
    assert schedule(held, list(reversed(jobs)), LIMITS, 0.0) == found
    assert [one.place for one in found] == list(range(1, len(jobs) + 1))
    by_job = {one.job: one for one in jobs}
    now = [Held(one.job, one.gpus, by_job[one.job].need.amounts) for one in found if one.now]
    check([*held, *now])
    assert not any(by_job[one.job].blocked for one in now)
    assert all(one.start is None or (one.start >= 0 and math.isfinite(one.start)) for one in found)
