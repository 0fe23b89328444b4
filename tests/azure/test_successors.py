"""A retired size has a successor on which its training fits, and the reason."""

from __future__ import annotations

import pytest

from distdl_jupyter.azure import catalogue, find


@pytest.mark.parametrize("size", catalogue(), ids=lambda size: size.name)
def test_a_retired_size_has_a_successor_that_can_be_rented_and_holds_the_training(size) -> None:
    assert bool(size.successor) is bool(size.successor_reason) is size.retired
    if size.retired:
        new = find(size.successor)
        assert new.name == size.successor
        assert not new.retired
        assert new.nvidia
        assert not new.arm_host
        assert new.gpu_memory_gib >= size.gpu_memory_gib
        assert new.gpu_count >= size.gpu_count
        assert size.successor_reason.startswith(f"{new.gpus_text} {new.memory_text} instead of {size.gpus_text} ")
        assert size.successor_reason.endswith("It has no InfiniBand.") is bool(size.infiniband and not new.infiniband)
        assert ("migration guide" in size.successor_reason) is (".md@" in size.successor_source)
