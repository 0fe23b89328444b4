"""What a source holds, which node takes what, and how much the cache of a node may hold."""

import base64
import hashlib

import pytest

from distdl_jupyter.azure.identity import open_blob_service
from distdl_jupyter.core.data import parse_source
from distdl_jupyter.core.errors import DataUnavailable, InvalidSpec
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import create_id
from distdl_jupyter.data import sources
from distdl_jupyter.data.stager import Item
from distdl_jupyter.data.staging import JobStaging


def listed(place):
    one = parse_source("train", place)
    return sources.list_blobs(open_blob_service(one.account), one)


def test_the_blobs_of_a_prefix_with_size_etag_and_sum(blob):
    container = blob.azurite.container()
    etag = container.put("cifar/a.bin", b"hello")
    container.put("cifar/deep/b ü.bin", b"x" * 10)
    container.put("cifar10/c.bin", b"no")
    container.put("cifar/folder", b"", metadata={"hdi_isfolder": "true"})
    items, is_single = listed(container.place("cifar"))
    assert ([item.name for item in items], is_single) == (["cifar/a.bin", "cifar/deep/b ü.bin"], False)
    sum_ = base64.b64encode(hashlib.md5(b"hello", usedforsecurity=False).digest()).decode()
    assert items[0] == Item("cifar/a.bin", 5, etag, sum_)


def test_a_prefix_that_is_one_blob_and_a_whole_container(blob):
    container = blob.azurite.container()
    container.put("mnist.npz", b"123")
    container.put("mnist.npz.old", b"1")
    assert [item.name for item in listed(container.place("mnist.npz")).items] == ["mnist.npz"]
    assert listed(container.place("mnist.npz")).is_single
    assert len(listed(container.place()).items) == 2


@pytest.mark.parametrize("prefix", ["", "nothing", "mnist"])
def test_a_source_without_files_is_refused(blob, prefix):
    container = blob.azurite.container()
    if prefix:
        container.put("mnist.npz", b"123")
    with pytest.raises(DataUnavailable, match="contains no files"):
        listed(container.place(prefix))


def items(*sizes):
    return tuple(Item(f"{number:04}", size, "e", "") for number, size in enumerate(sizes))


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
def test_shards_are_disjoint_complete_and_the_same_everywhere(nodes):
    all_items = items(*(1 + 37 * number % 101 for number in range(200)))
    parts = [sources.shard(all_items, node, nodes) for node in range(nodes)]
    assert sorted(item for part in parts for item in part) == list(all_items)
    assert parts[0] == sources.shard(tuple(reversed(all_items)), 0, nodes)
    loads = [sum(item.size for item in part) for part in parts]
    assert max(loads) - min(loads) <= 101


@pytest.mark.parametrize(("sizes", "counts"), [((0,) * 10, [4, 3, 3]), ((5, 5), [1, 1, 0])])
def test_files_without_content_are_distributed_and_some_nodes_may_get_none(sizes, counts):
    assert [len(sources.shard(items(*sizes), node, 3)) for node in range(3)] == counts


def test_a_blob_in_the_archive_is_named_before_anything_is_fetched(blob):
    container = blob.azurite.container()
    container.put("cifar/a.bin", b"1")
    container.put("cifar/b.bin", b"2")
    container.client.get_blob_client("cifar/b.bin").set_standard_blob_tier("Archive")
    with pytest.raises(DataUnavailable, match=r"'cifar/b\.bin' in .* is in the archive tier"):
        listed(container.place("cifar"))


@pytest.mark.parametrize(
    ("given", "limit"), [("", None), ("5000", 5000), ("50 GB", 50_000_000_000), ("1.5T", 1_500_000_000_000), ("0", 0)]
)
def test_the_limit_of_the_cache_is_a_number_of_bytes_with_or_without_a_unit(monkeypatch, given, limit):
    monkeypatch.setenv("DISTDL_DATA_CACHE_BYTES", given)
    assert JobStaging(JobSpec(id=create_id(), name="n"), print, print).build_request(0)["limit_bytes"] == limit


def test_a_limit_of_the_cache_that_cannot_be_read_is_refused(monkeypatch):
    monkeypatch.setenv("DISTDL_DATA_CACHE_BYTES", "much")
    with pytest.raises(InvalidSpec, match=r"DISTDL_DATA_CACHE_BYTES must be a size, not 'much'"):
        JobStaging(JobSpec(id=create_id(), name="n"), print, print).prepare()
