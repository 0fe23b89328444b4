"""Looks at clusters: what is known of one stays while others are looked at, until nobody has asked for long."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from distdl_jupyter.clusters import status_cache
from distdl_jupyter.clusters.cluster_configs import ClusterConfig
from distdl_jupyter.clusters.status import ClusterStatus
from distdl_jupyter.clusters.status_cache import StatusCache

LAB, RACK = ClusterConfig("lab", "ssh"), ClusterConfig("rack", "slurm")


@pytest.fixture
def silent(monkeypatch):
    """The names of clusters that do not answer; ``let_go`` ends all looks at them."""
    silent, let_go = set(), threading.Event()

    def look(target):
        if target.name in silent:
            let_go.wait(10)
        return ClusterStatus.of(target, title=f"{target.name} is up")

    monkeypatch.setattr(status_cache.status, "look", look)
    monkeypatch.setattr(status_cache, "FIRST", 0.05)
    monkeypatch.setattr(status_cache, "AGAIN", 0.01)
    yield silent
    let_go.set()


def test_one_that_falls_silent_is_shown_as_it_was_known_also_after_looks_at_others(silent):
    async def story():
        looks = StatusCache(60)
        found = [await looks.now(LAB), await looks.now(RACK)]
        silent.add("lab")
        return [*found, await looks.now(LAB), await looks.now(RACK), await looks.now(LAB)]

    assert [one.title for one in asyncio.run(story())] == ["lab is up", "rack is up"] * 2 + ["lab is up"]


def test_what_nobody_asked_for_in_ten_minutes_is_forgotten(silent, monkeypatch):
    async def story():
        looks = StatusCache(60)
        await looks.now(LAB)
        monkeypatch.setattr(status_cache, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 601))
        await looks.now(RACK)
        return looks

    assert len(asyncio.run(story())._statuses._probes) == 1
