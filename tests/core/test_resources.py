"""Samples survive a torn line, and notes last as long as their problem."""

import itertools
from itertools import zip_longest

import pytest

from distdl_jupyter.core.resources import ResourceHistory, encode_sample

GB = 1e9
NODE = {
    "cpu": 200.0,
    "memory": 4 * GB,
    "limit": 16 * GB,
    "disk_read": 1e6,
    "disk_written": None,
    "received": 5.0,
    "sent": 7.0,
}
ABOUT = {
    "host": "gpu2",
    "gpus": [{"number": rank, "name": "A", "memory": 24 * GB, "ranks": [rank]} for rank in range(8)],
}


def sample(t, ranks, gpus=None, **node):
    return {
        "t": t,
        "node": {**NODE, **node},
        "ranks": {str(rank): both for rank, both in ranks.items()},
        "gpus": {str(number): three for number, three in (gpus or {}).items()},
    }


@pytest.fixture
def fold(tmp_path):
    def fold(samples, torch=()):
        path = tmp_path / "resources.jsonl"
        lines = [encode_sample(0, {**one, "about": ABOUT}, memory) for one, memory in zip_longest(samples, torch)]
        path.write_bytes(b"".join(lines))
        book = ResourceHistory(path)
        book.read()
        return book, book.find_problems()

    return fold


def test_what_is_written_is_read(fold):
    book, marks = fold([sample(10.0, {0: [84.0, 3 * GB], 1: [None, None]}, {1: [57, 3.1 * GB, 250.4]})])
    (one,) = book.samples.values()
    assert one.ranks[0].cpu == 84
    assert one.ranks[0].memory == pytest.approx(3 * GB)
    assert one.ranks[0].gpu is None
    assert (one.ranks[1].cpu, one.ranks[1].memory, one.ranks[1].gpu, one.ranks[1].power) == (None, None, 57, 250)
    assert one.ranks[1].gpu_memory == pytest.approx(3.1 * GB)
    assert one.ranks[1].gpu_limit == 24 * GB
    assert one.machine.available == pytest.approx(12 * GB)
    assert one.machine.disk_written is None
    assert marks == []


def test_a_torn_end_is_read_when_it_is_whole_and_other_lines_are_passed_over(tmp_path):
    lines = [encode_sample(0, sample(t, {0: [1.0, GB]})) for t in (1.0, 2.0)]
    path = tmp_path / "resources.jsonl"
    path.write_bytes(lines[0][:-2] + b',"new":1}\n' + b'{"t":"now"}\nxx\n' + lines[1][:-3])
    book = ResourceHistory(path)
    assert [one.t for one in book.read()] == [1.0]
    with path.open("ab") as file:
        file.write(lines[1][-3:])
    assert [one.t for one in book.read()] == [2.0]


def test_memory_that_is_nearly_full_names_the_rank_that_uses_most(fold):
    _, marks = fold([sample(t, {2: [1.0, GB], 3: [1.0, 14 * GB]}, memory=15.4 * GB) for t in range(3)])
    assert [(mark.kind, mark.rank, mark.host) for mark in marks] == [("memory", 3, "gpu2")]
    assert marks[0].text == ("The memory on gpu2 is 96 % full (600 MB of 16 GB free). Rank 3 uses the most, 14 GB.")


def test_gpu_memory_that_grows_steadily_names_the_rank(fold):
    def of(memory):
        return fold([sample(t, {1: [99.0, GB]}, {1: [90, memory(t) * GB, 60]}) for t in range(70)])[1]

    (mark,) = of(lambda t: 2 + t / 20)
    assert (mark.kind, mark.rank, mark.host) == ("gpu_memory", 1, "gpu2")
    assert "50 MB per second" in mark.text
    assert of(lambda t: 8) == []
    assert of(lambda t: 2 + t / 10_000) == [], "hardly"
    assert of(lambda t: min(20, 1 + t)) == [], "the first steps"
    assert of(lambda t: 4 + t % 20) == [], "it comes and goes"
    grows = [sample(t, {1: [99.0, GB]}, {1: [90, (1 + t) * GB, 60]}) for t in range(20)]
    assert fold(grows)[1] == [], "too short to tell"
    none = [sample(t, {1: [99.0, GB]}, {1: [90, None, 60]}) for t in range(70)]
    assert fold(none)[1] == []


def test_growing_gpu_memory_names_both_remedies_and_the_memory_of_tensors_is_kept(fold):
    samples = [sample(t, {1: [99.0, GB]}, {1: [90, (12 + t / 20) * GB, 60]}) for t in range(70)]
    book, (mark,) = fold(samples, [{1: (2 * GB, 12 * GB)} for _ in samples])
    use = book.ranks[1][1]
    assert (use.torch_allocated, use.torch_reserved) == pytest.approx((2 * GB, 12 * GB))
    assert "torch_allocated" in book.curves.metrics
    assert "The GPU memory of rank 1 on gpu2 grows by 50 MB per second" in mark.text
    assert "will be full in about 2 min 51 s" in mark.text
    assert "loss.item()" in mark.text
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in mark.text


def test_a_gpu_that_idles_for_a_minute_is_named_and_one_that_was_busy_once_is_not(fold):
    def of(busy):
        return [sample(t, {1: [99.0, GB]}, {1: [next(busy), GB, 60]}) for t in range(70)]

    _, marks = fold(of(itertools.repeat(2)))
    assert [(mark.kind, mark.rank) for mark in marks] == [("gpu", 1)]
    assert "The GPU of rank 1 on gpu2 has been idle for 1 min" in marks[0].text
    assert fold(of(itertools.cycle([0] * 30 + [90])))[1] == []
    assert fold(of(itertools.repeat(None)))[1] == []
