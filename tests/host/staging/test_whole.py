"""What is staged is what was stored, and the second time it costs nothing."""

import random

from tests.host.staging.conftest import reading, source

MB = 2**20


def noise(size, seed=0):
    return random.Random(seed).randbytes(size)


def test_files_small_and_large_arrive_as_they_were_stored(stage, container):
    stored = {
        "cifar/a.bin": noise(9 * MB + 17, 1),
        "cifar/sub/b.bin": noise(100),
        "cifar/sub/deep/c": b"",
        "cifar/exact": noise(4 * MB),
    }
    for name, data in stored.items():
        container.put(name, data)
    container.put("cifar10/other", b"not asked for")
    run = stage.run(source(container, "cifar/"), sas=reading(container))
    last = run.staged()
    folder = last["paths"]["DISTDL_DATA_TRAIN"]
    assert stage.files(folder) == {name.removeprefix("cifar/"): data for name, data in stored.items()}
    assert (last["bytes"], last["cached"]) == (sum(map(len, stored.values())), 0)
    told = run.of("progress")[-1]
    assert (told["done"], told["total"], told["files"], told["of"], told["cached"]) == (
        last["bytes"],
        last["bytes"],
        4,
        4,
        0,
    )
    assert run.asked == 1
    assert stage.left(".part") == stage.left(".ranges") == []
