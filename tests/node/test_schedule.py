"""The order of starts: never more than there is, first come first served, and every job starts in the end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from distdl_jupyter.node.slots import HOLDING, QueueEntry, ResourceRequest, order_jobs, schedule

GPUS = tuple("abcd")
LIMITS = {"cores": 8.0, "memory": 64.0}


def waits(key, number, gpus=0, *, user=1, among=GPUS, priority=0.0, blocked=False, **amounts):
    return QueueEntry(
        key, user, number, ResourceRequest(gpus, among if gpus else (), amounts), priority=priority, blocked=blocked
    )


def holds(key, gpus=(), amounts=()):
    return QueueEntry(key, 1, 0, ResourceRequest(len(gpus), gpus, dict(amounts)), HOLDING, gpus)


def places(held, *waiting, late=()):
    return {place.key: place for place in schedule([*held, *waiting], LIMITS, late)}


def test_a_job_says_what_is_missing_who_has_it_and_what_is_free():
    held = [holds("r", ("a", "b"), {"cores": 6}), holds("s", ("c",), {})]
    place = places(held, waits("x", 1, 2, cores=2))["x"]
    assert (place.position, place.can_start, place.missing, place.holders, place.other_holder_count) == (
        1,
        False,
        ("gpus",),
        ("r", "s"),
        0,
    )
    assert place.free == {"cores": 2, "gpus": 1}


def test_of_many_holders_the_first_are_named_and_the_others_counted():
    held = [holds(f"r{number}", (), {"cores": 0.001}) for number in range(1000)]
    place = places(held, waits("x", 1, cores=8))["x"]
    assert (len(place.holders), place.other_holder_count) == (4, 996)


def test_a_job_passes_another_only_where_it_needs_nothing_of_what_that_one_waits_for():
    held = [holds("r", ("a", "b"))]
    assert not places(held, waits("big", 1, 4), waits("small", 2, 1))["small"].can_start
    assert places(held, waits("big", 1, 3, among=GPUS[:3]), waits("other", 2, 1))["other"].gpus == ("d",)
    assert places(held, waits("big", 1, 4), waits("cores", 2, cores=8))["cores"].can_start
    assert not places(held, waits("big", 1, 4, cores=4), waits("cores", 2, cores=5))["cores"].can_start


def test_a_priority_moves_a_job_among_those_of_its_user_only():
    jobs = [
        waits("a1", 1, user=1),
        waits("b1", 2, user=2),
        waits("a2", 3, user=1, priority=5),
        waits("b2", 4, user=2, priority=-1),
    ]
    assert [job.key for job in order_jobs(jobs)] == ["a2", "b1", "a1", "b2"]


def test_a_blocked_job_keeps_its_place_and_holds_up_nobody():
    found = places([], waits("x", 1, 4, blocked=True), waits("y", 2, 4))
    assert (found["x"].position, found["x"].can_start, found["y"].position, found["y"].can_start) == (1, False, 2, True)


def test_nothing_is_kept_for_a_user_whose_jobs_could_start_and_do_not():
    jobs = [waits("x", 1, 4, user=1), waits("y", 2, 4, user=2)]
    assert not places([], *jobs)["y"].can_start
    found = places([], *jobs, late={1})
    assert found["x"].can_start
    assert found["y"].can_start
    assert not places([holds("r", ("a",))], *jobs, late={1})["y"].can_start


# all cases --------------------------------------------------------------------------------------

needs = st.builds(
    lambda gpus, among, cores, memory: ResourceRequest(
        min(gpus, len(among)),
        tuple(sorted(among)) if gpus else (),
        {name: value for name, value in (("cores", cores), ("memory", memory)) if value},
    ),
    st.integers(0, 4),
    st.sets(st.sampled_from(GPUS), min_size=1),
    st.integers(0, 8),
    st.integers(0, 64),
)


@st.composite
def queues(draw, most=8):
    return [
        QueueEntry(
            f"j{number}",
            draw(st.sampled_from((1, 2))),
            number,
            draw(needs),
            priority=float(draw(st.integers(-1, 1))),
            blocked=draw(st.integers(0, 9)) == 0,
        )
        for number in range(draw(st.integers(1, most)))
    ]


def check(held):
    gpus = [gpu for job in held for gpu in job.gpus]
    assert len(gpus) == len(set(gpus))
    for name, limit in LIMITS.items():
        assert sum(job.request.amounts.get(name, 0) for job in held) <= limit


def start_order(jobs, lengths):
    """Let all jobs wait from the beginning, start and end; return when each started."""
    held, ends, starts, now = {}, {}, {}, 0.0
    while len(starts) < len(jobs):
        waiting = [job for job in jobs if job.key not in starts]
        ready = next((place for place in schedule([*held.values(), *waiting], LIMITS) if place.can_start), None)
        if ready is not None:
            job = next(job for job in jobs if job.key == ready.key)
            starts[job.key] = now
            held[job.key] = holds(job.key, ready.gpus, job.request.amounts)
            ends[job.key] = now + lengths[job.key]
            check(held.values())
            continue
        now = min(ends.values())
        for key in [key for key, end in ends.items() if end <= now]:
            del held[key], ends[key]
    return starts


@settings(max_examples=30, deadline=None)
@given(queues(), st.data())
def test_never_more_than_there_is_and_every_job_starts(jobs, data):
    jobs = [job._replace(blocked=False) for job in jobs]
    starts = start_order(jobs, {job.key: data.draw(st.integers(1, 50)) for job in jobs})
    assert starts.keys() == {job.key for job in jobs}


@settings(max_examples=30, deadline=None)
@given(queues(), st.data())
def test_no_job_delays_one_before_it(jobs, data):
    """The first job starts as if it were alone, whatever passes it."""
    jobs = [job._replace(blocked=False, priority=0.0, uid=1) for job in jobs]
    first = QueueEntry("first", 1, -1, data.draw(needs))
    gpus = tuple(data.draw(st.sets(st.sampled_from(GPUS))))
    busy = holds("r", gpus, {"cores": float(data.draw(st.integers(0, 8)))})
    passing = {p.key: p for p in schedule([busy, first, *jobs], LIMITS)}
    running = [holds(job.key, passing[job.key].gpus, job.request.amounts) for job in jobs if passing[job.key].can_start]
    check([busy, *running])
    assert schedule([first], LIMITS)[0].can_start
    assert next(p for p in schedule([*running, first], LIMITS) if p.key == "first").can_start


@settings(max_examples=30, deadline=None)
@given(queues(), st.lists(st.sampled_from(GPUS), max_size=4))
def test_a_schedule_is_the_same_for_all_and_what_starts_now_fits_together(jobs, running):
    held = [holds(f"r{number}", (gpu,)) for number, gpu in enumerate(dict.fromkeys(running))]
    found = schedule([*held, *jobs], LIMITS)
    assert schedule([*held, *reversed(jobs)], LIMITS) == found
    assert [place.position for place in found] == list(range(1, len(jobs) + 1))
    by_key = {job.key: job for job in jobs}
    check([*held, *(holds(p.key, p.gpus, by_key[p.key].request.amounts) for p in found if p.can_start)])
    assert not any(by_key[place.key].blocked for place in found if place.can_start)
