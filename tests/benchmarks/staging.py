"""How fast a node fetches its data, beside azure-storage-blob with the same settings.

``python tests/benchmarks/staging.py`` prints MB/s of both and their ratio (more than 1: faster than the SDK), and how
often the own processor time fits into the SDK's. Both fetch the same blobs over TLS to files on the same disk, in
turns, with as many connections, in ranges of 4 MiB, and both check the MD5 of each range (``validate_content``); a
second row lets the SDK check nothing. The servers are Azurite and one that costs as little as can be, both on this
machine, so this tells what the clients cost and nothing of Azure.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from distdl_jupyter.host.staging.order import order

sys.path.insert(0, str(Path(__file__).parents[2]))

from distdl_jupyter.host.staging.cache import RANGE
from distdl_jupyter.host.staging.stager import Stager
from distdl_jupyter.host.staging.talk import Talk
from tests.azurite import install
from tests.azurite.cheap import Cheap
from tests.azurite.server import Azurite
from tests.standin import certificate

ROUNDS = 5
CONNECTIONS = 4
MB = 2**20


class Answering(Talk):
    """Gives a signature to the stager and hears nothing."""

    def __init__(self, sas: str) -> None:
        self._sas = sas

    def tell(self, message: dict[str, Any]) -> None:
        return

    last = tell

    def ask(self, message: dict[str, Any], patience: float) -> dict[str, Any]:
        return {"sas": self._sas}


class Blobs:
    """Blobs on a server: ``address`` of their container, ``items`` as an order has them."""

    def __init__(self, address: str, ca: str, items: list[list[Any]], sas: str) -> None:
        self.address, self.ca, self.items, self.sas = address, ca, items, sas
        self.size = sum(item[1] for item in items)

    def stage(self, folder: Path) -> None:
        told = {"job": "bench", "node": 0, "base": str(folder), "workers": CONNECTIONS, "ca": Path(self.ca).read_text(),
                "sources": [{"name": "x", "variable": "X", "kind": "blob", "address": self.address, "prefix": "",
                             "items": self.items}]}  # fmt: skip
        Stager(order(told), Answering(self.sas)).run()

    def sdk(self, folder: Path, *, checked: bool) -> None:
        """Several connections for one large blob after the other, or for many small blobs at a time."""
        from azure.storage.blob import ContainerClient

        large = self.items[0][1] > RANGE
        with ContainerClient.from_container_url(
            f"{self.address}?{self.sas}", connection_verify=self.ca, max_single_get_size=RANGE, max_chunk_get_size=RANGE
        ) as container:

            def fetch(item: list[Any]) -> None:
                blob = container.download_blob(
                    item[0], max_concurrency=CONNECTIONS if large else 1, validate_content=checked
                )
                with (folder / item[0]).open("wb") as file:
                    blob.readinto(file)

            with ThreadPoolExecutor(1 if large else CONNECTIONS) as threads:
                list(threads.map(fetch, self.items))


def main() -> None:
    """Measure on both servers and print a table."""
    print(f"azure-storage-blob {version('azure-storage-blob')}, {CONNECTIONS} connections, median of {ROUNDS} turns")
    print(f"{'':54}{'here':>13}{'SDK':>13}   ratio  (processor)")
    with tempfile.TemporaryDirectory(prefix="distdl-bench-") as scratch:
        certificates = certificate.make(Path(scratch))
        for title, blobs in served(*certificates):
            compare(title, blobs, Path(scratch))


def served(cert: Path, key: Path) -> Iterator[tuple[str, Blobs]]:
    """Yield what is fetched, with its server running."""
    for count, size, title in ((3, 64 * MB, "3 x 64 MiB"), (1000, 1000, "1,000 x 1 kB")):
        with contextlib.closing(Cheap(cert, key, count, size)) as cheap:
            yield f"{title}, cheap server", Blobs(f"{cheap.endpoint}/c", cheap.ca, cheap.items, "sv=1&sig=x")
    try:
        install.program()
    except (RuntimeError, OSError) as error:
        print(f"Azurite is left out: {error}")
        return
    name = (install.HERE / "package.json").read_text().partition('"azurite": "')[2].partition('"')[0]
    with contextlib.closing(Azurite(cert, key)) as azurite:
        for count, size, title in ((3, 32 * MB, "3 x 32 MiB"), (200, 1000, "200 x 1 kB")):
            container = azurite.container()
            for number in range(count):
                container.put(str(number), os.urandom(size), md5=False)
            yield f"{title}, Azurite {name}", Blobs(container.address, azurite.ca, container.items(), container.sas())


def compare(title: str, blobs: Blobs, scratch: Path) -> None:
    """Print a row for each way of the SDK."""
    ways: dict[str, Callable[[Path], None]] = {
        "here": blobs.stage,
        "both check each range": lambda folder: blobs.sdk(folder, checked=True),
        "the SDK checks nothing": lambda folder: blobs.sdk(folder, checked=False),
    }
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            turns[name].append(timed(way, scratch / "files"))
    (here, own), *others = (map(statistics.median, zip(*turns[name], strict=True)) for name in ways)
    for name, (other, its) in zip(list(ways)[1:], others, strict=True):
        speeds = "".join(f"{blobs.size / 1e6 / one:8.1f} MB/s" for one in (here, other))
        print(f"{title + ': ' + name:54}{speeds}{other / here:8.2f}  ({its / own:.2f})", flush=True)


def timed(way: Callable[[Path], None], folder: Path) -> tuple[float, float]:
    """Return how many seconds it takes to fill an empty folder, and of this process's processor time."""
    folder.mkdir()
    started, used = time.perf_counter(), time.process_time()
    way(folder)
    taken = time.perf_counter() - started, time.process_time() - used
    shutil.rmtree(folder)
    return taken


if __name__ == "__main__":
    main()
