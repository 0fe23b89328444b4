"""How fast a node fetches its data, compared with azure-storage-blob with the same settings.

``python -m tests.benchmarks.staging`` compares seconds, and seconds of this process's processor. Both fetch the same
blobs over TLS to files on the same disk, in turns, with as many connections. Either both check MD5 sums (the stager
that of each file, the SDK that of each range of 4 MiB), or neither does and ranges have the same size. The server is
Azurite on this machine, so this shows what the clients cost and nothing of Azure.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from distdl_jupyter.data.stager import RANGE_BYTES, DataStager, StdioChannel
from tests.azurite import install
from tests.azurite.server import Azurite
from tests.benchmarks import report
from tests.benchmarks.report import Report, interleaved
from tests.standin import certificate

CONNECTIONS = 4
MB = 2**20


class Answering(StdioChannel):
    """Gives a signature to the stager and hears nothing."""

    def __init__(self, sas: str) -> None:
        self._sas = sas

    def send(self, message: dict[str, Any], *, is_last: bool = False) -> None:
        return

    def request_signature(self, source: str) -> str:
        return self._sas


class Blobs:
    """Blobs on a server: ``address`` of their container, ``items`` as a request has them."""

    def __init__(self, address: str, ca: str, items: list[list[Any]], sas: str) -> None:
        self.address, self.ca, self.items, self.sas = address, ca, items, sas
        self.size = sum(item[1] for item in items)

    def stage(self, folder: Path) -> None:
        source = {"name": "x", "variable": "X", "kind": "blob", "address": self.address, "items": self.items}
        request: dict[str, Any] = {"job": "bench", "base": str(folder), "workers": CONNECTIONS, "sources": [source]}
        DataStager(Answering(self.sas), ca=Path(self.ca).read_text(), **request).run()

    def sdk(self, folder: Path, *, checked: bool) -> None:
        """Several connections for one large blob after the other, or for many small blobs at a time."""
        from azure.storage.blob import ContainerClient

        large = self.items[0][1] > RANGE_BYTES
        step = 4 * MB if checked else RANGE_BYTES  # Azure sends no MD5 of a longer range
        with ContainerClient.from_container_url(
            f"{self.address}?{self.sas}", connection_verify=self.ca, max_single_get_size=step, max_chunk_get_size=step
        ) as container:

            def fetch(item: list[Any]) -> None:
                blob = container.download_blob(
                    item[0], max_concurrency=CONNECTIONS if large else 1, validate_content=checked
                )
                with (folder / item[0]).open("wb") as file:
                    blob.readinto(file)

            with ThreadPoolExecutor(1 if large else CONNECTIONS) as threads:
                list(threads.map(fetch, self.items))


def measure(turns: int) -> Iterator[Report]:
    """Yield a table for each server and size."""
    with tempfile.TemporaryDirectory(prefix="distdl-bench-") as scratch:
        certificates = certificate.make(Path(scratch))
        for title, blobs in served(*certificates):
            yield compare(title, blobs, Path(scratch), turns)


def served(cert: Path, key: Path) -> Iterator[tuple[str, Blobs]]:
    """Yield what is fetched, with its server running."""
    try:
        install.program()
    except (RuntimeError, OSError) as error:
        print(f"Azurite is left out: {error}", file=sys.stderr)
        return
    name = (install.HERE / "package.json").read_text().partition('"azurite": "')[2].partition('"')[0]
    with contextlib.closing(Azurite(cert, key)) as azurite:
        for count, size, title in ((3, 64 * MB, "3 x 64 MiB"), (200, 1000, "200 x 1 kB")):
            for checked in (False, True):
                container = azurite.container()
                for number in range(count):
                    container.put(str(number), os.urandom(size), md5=checked)
                blobs = Blobs(container.address, azurite.ca, container.items(), container.sas())
                yield f"{title}, {'both check' if checked else 'neither checks'}, Azurite {name}", blobs


def compare(title: str, blobs: Blobs, scratch: Path, turns: int) -> Report:
    """Return the table of the stager and the SDK."""
    checked = bool(blobs.items[0][3])
    ways: dict[str, Callable[[Path], None]] = {
        "stager": blobs.stage,
        "SDK": lambda folder: blobs.sdk(folder, checked=checked),
    }
    used: dict[str, list[float]] = {name: [] for name in ways}
    times = interleaved({name: partial(timed, way, scratch / "files", used[name]) for name, way in ways.items()}, turns)
    table = Report(f"Data fetched: {title}", "s", report.versions("distdl-jupyter", "azure-storage-blob"))
    table.compare(f"{CONNECTIONS} connections", times["stager"], "the SDK", times["SDK"])
    table.compare("of the processor", used["stager"][-turns:], "the SDK", used["SDK"][-turns:])
    return table


def timed(way: Callable[[Path], None], folder: Path, used: list[float]) -> float:
    """Return how many seconds it takes to fill an empty folder; ``used`` gets those of this process's processor."""
    folder.mkdir()
    started, before = time.perf_counter(), time.process_time()
    way(folder)
    elapsed = time.perf_counter() - started
    used.append(time.process_time() - before)
    shutil.rmtree(folder)
    return elapsed


if __name__ == "__main__":
    report.main(measure, turns=3)
