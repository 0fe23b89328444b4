"""Loader workers and pools get functions and classes of the notebook, however their processes are started."""

from __future__ import annotations

from textwrap import dedent

import pytest

from distdl_jupyter import JobFailed
from distdl_jupyter.api.submit_process import submit_source

METHODS = ["fork", "forkserver", "spawn"]

LOADER = dedent(
    """
    import collections, os, time
    import torch
    from torch.utils.data import DataLoader, Dataset, get_worker_info

    Batch = collections.namedtuple("Batch", "x seen")
    scale = 1
    factor = 10

    class Base(Dataset):
        def __len__(self):
            return 8

    class Squares(Base):
        def __init__(self, transform):
            super().__init__()
            self.transform = transform
        def __getitem__(self, i):
            assert get_worker_info() is not None
            return self.transform(torch.tensor(float(i * i)) * scale * factor)

    def collate(rows):
        return Batch(torch.stack(rows), os.getpid())

    def init(worker):
        global scale
        scale = 2
        time.sleep(0.01)

    batches = []
    for epoch in range(2):
        loader = DataLoader(Squares(lambda x: x + 1), batch_size=4, num_workers=2, collate_fn=collate,
                            worker_init_fn=init, multiprocessing_context=METHOD)
        batches.append(list(loader))
    {
        "same class": all(type(b) is Batch for epoch in batches for b in epoch),
        "elsewhere": all(b.seen != os.getpid() for epoch in batches for b in epoch),
        "values": [b.x.tolist() for b in batches[-1]],
        "scale": scale,
    }
    """
)
EXPECTED = {
    "same class": True,
    "elsewhere": True,
    "values": [[1.0, 21.0, 81.0, 181.0], [321.0, 501.0, 721.0, 981.0]],
    "scale": 1,
}


@pytest.mark.parametrize("method", METHODS)
def test_loader_workers_get_what_a_cell_defines(method: str) -> None:
    code = LOADER.replace("METHOD", repr(method))
    options = {"process_count_per_node": 2, "distributed_backend": "torch"}
    assert submit_source(code, options=options).results(timeout=240) == [EXPECTED, EXPECTED]


POOLS = dedent(
    """
    import concurrent.futures, multiprocessing
    import torch.multiprocessing

    class Point:
        def __init__(self, x):
            self.x = x
        def __eq__(self, other):
            return type(self) is type(other) and self.x == other.x

    model = None

    def prepare(value):
        global model
        model = value

    def work(x):
        return Point(x * model)

    def nested(x):
        with multiprocessing.get_context(METHOD).Pool(1, prepare, (3,)) as pool:
            return pool.map(work, [x])[0]

    def child(index, queue):
        queue.put(Point(index))

    context = multiprocessing.get_context(METHOD)
    with concurrent.futures.ProcessPoolExecutor(2, context, prepare, (2,)) as pool:
        executor = list(pool.map(work, range(4)))
        again = pool.submit(work, 5).result()
    with context.Pool(1, prepare, (3,)) as pool:
        lambdas = pool.map(lambda x: work(x), range(2))
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        inner = pool.submit(nested, 7).result()
    queue = torch.multiprocessing.get_context(METHOD).SimpleQueue()
    torch.multiprocessing.start_processes(child, (queue,), nprocs=2, start_method=METHOD)
    spawned = sorted([queue.get(), queue.get()], key=lambda p: p.x)
    (
        executor == [Point(0), Point(2), Point(4), Point(6)] and again == Point(10),
        lambdas == [Point(0), Point(3)],
        inner == Point(21),
        spawned == [Point(0), Point(1)],
        model,
    )
    """
)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_pools_get_what_a_cell_defines_and_give_it_back(method: str) -> None:
    code = POOLS.replace("METHOD", repr(method))
    assert submit_source(code, options={}).result(timeout=240) == (True, True, True, True, None)


def test_what_cannot_be_sent_is_named_with_the_remedy() -> None:
    code = dedent(
        """
        import multiprocessing, threading
        lock = threading.Lock()
        def work(x):
            with lock:
                return x
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.map(work, [1])
        """
    )
    with pytest.raises(JobFailed) as raised:
        submit_source(code, options={}).result(timeout=200)
    text = str(raised.value)
    assert "work of the notebook cannot be sent to a child process" in text
    assert "multiprocessing_context='fork'" in text
