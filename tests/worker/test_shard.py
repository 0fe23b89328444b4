"""``shard``: which rows of a table each rank reads, and in how many batches."""

import pickle
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distdl_jupyter import shard

SCHEMA = pa.schema({"id": pa.int64(), "pair": pa.list_(pa.float64()), "text": pa.string(),
                    "some": pa.list_(pa.int64()), "lacks": pa.int64()})  # fmt: skip


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Return a function that writes rows 0, 1, ... to files of these many, in row groups of 7."""

    def write(*counts):
        folder = tmp_path / "train"
        folder.mkdir()
        begin = 0
        for number, count in enumerate(counts):
            rows = list(range(begin, begin + count))
            columns = {"id": rows, "pair": [[row, row + 0.5] for row in rows], "text": [str(row) for row in rows],
                       "some": [list(range(row % 3)) for row in rows],
                       "lacks": [None if row % 2 else row for row in rows]}  # fmt: skip
            pq.write_table(pa.table(columns, schema=SCHEMA), folder / f"part-{number}.parquet", row_group_size=7)
            begin += count
        (folder / "_SUCCESS").touch()  # as Spark does
        monkeypatch.setenv("DISTDL_DATA_TRAIN", str(folder))
        return folder

    return write


def read(batch_size, size, **more):
    """Return the numbers of the rows in each batch of each rank."""
    return [[batch["id"].tolist() for batch in shard("train", batch_size, rank=rank, size=size, **more)]
            for rank in range(size)]  # fmt: skip


def flat(batches):
    return [row for batch in batches for row in batch]


@pytest.mark.parametrize("counts", [(31,), (7, 7, 7), (1, 0, 50, 3), (14, 100)])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 32, 1000])
@pytest.mark.parametrize("seed", [None, 3])
def test_each_row_is_read_once_in_as_many_batches_on_each_rank(table, counts, size, batch_size, seed):
    table(*counts)
    found = read(batch_size, size, seed=seed)
    assert Counter(row for rank in found for batch in rank for row in batch) == Counter(range(sum(counts)))
    assert len({len(rank) for rank in found}) == 1
    assert max(len(batch) for rank in found for batch in rank) <= max(batch_size, 2)
    assert min(len(batch) for rank in found for batch in rank) >= 1
    assert all(len(shard("train", batch_size, rank=rank, size=size)) == len(found[0]) for rank in range(size))


def test_order_is_that_of_the_files_or_of_the_seed(table):
    table(20, 20)
    assert flat(read(8, 2)[1]) == list(range(20, 40))
    first, second = read(8, 2, seed=0), read(8, 2, seed=1)
    assert first == read(8, 2, seed=0)
    assert first != second
    assert sorted(flat(first[0])) == list(range(20))


def test_columns_are_arrays_whose_first_axis_is_the_rows(table):
    table(10)
    (batch,) = shard("train", 10)
    assert batch["pair"].tolist() == [[row, row + 0.5] for row in range(10)]
    assert batch["text"].tolist() == [str(row) for row in range(10)]
    assert [list(row) for row in batch["some"]] == [list(range(row % 3)) for row in range(10)]
    assert np.isnan(batch["lacks"][1])
    assert batch["id"].flags.writeable
    assert list(shard("train", 10, columns=["id"])[0]) == ["id"]
    assert [len(shard("train", 4)[number]["id"]) for number in (1, -1)] == [3, 4]


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader_gives_each_row_once_as_tensors(table, workers):
    from torch.utils.data import DataLoader

    table(30, 13)
    data = pickle.loads(pickle.dumps(shard("train", 5, columns=["id", "pair"])))
    batches = list(DataLoader(data, batch_size=None, num_workers=workers))
    assert [row for batch in batches for row in batch["id"].tolist()] == list(range(43))
    assert batches[0]["pair"].shape == (4, 2)


def test_what_cannot_be_read_is_refused_with_the_remedy(table, tmp_path, monkeypatch):
    table(3)
    with pytest.raises(ValueError, match="train has 3 rows, but each of the 4 ranks needs at least one"):
        shard("train", 2, rank=0, size=4)
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1, not 0"):
        shard("train", 0)
    with pytest.raises(ValueError, match="Unknown rank 2: there are 2 ranks"):
        shard("train", 1, rank=2, size=2)
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("DISTDL_DATA_OTHER", str(tmp_path / "other"))
    with pytest.raises(ValueError, match=r"other has no Parquet files for shard.*data_path\('other'\)"):
        shard("other", 2)
