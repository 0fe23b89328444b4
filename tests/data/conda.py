"""A channel of conda's that a test builds, and ``conda create`` by rattler, conda's and pixi's solver and installer.

conda, mamba and micromamba are in no index of Python packages. Where one of them is on the PATH, tests run it instead.
``python -m tests.data.conda create --yes --prefix FOLDER SPEC ...`` takes channels as conda does: from
``CONDA_CHANNELS``, and from a spec ``CHANNEL::PACKAGE``.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import json
import os
import platform
import shlex
import shutil
import sys
import tarfile
from pathlib import Path

from tests.processes import executable

_VERSION = ".".join(map(str, sys.version_info[:3]))
_SUBDIR = f"{platform.system()}-{platform.machine()}".lower().replace("darwin", "osx").replace("x86_64", "64")


class Channel:
    """A channel in a folder; ``url`` names it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packages: dict[str, object] = {}
        self.url = folder.as_uri()
        self._write()

    def add(self, name: str, version: str, files: dict[str, bytes | Path], *, depends: list[str], python: bool) -> None:
        """Add a package with these files: bytes, or the target of a link. ``python`` packages hold modules."""
        index = {"name": name, "version": version, "build": "0", "build_number": 0, "depends": depends, "arch": None,
                 "subdir": "noarch", "noarch": "python" if python else "generic"}  # fmt: skip
        paths = [{"_path": path, **_described(content)} for path, content in files.items()]
        described = {
            "info/index.json": index, "info/paths.json": {"paths": paths, "paths_version": 1}, "info/about.json": {},
            "info/link.json": {"noarch": {"type": index["noarch"]}, "package_metadata_version": 1},
        }  # fmt: skip
        described = {path: json.dumps(document).encode() for path, document in described.items()}
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:bz2") as tar:
            for path, content in {**files, **described, "info/files": "\n".join(files).encode()}.items():
                member = tarfile.TarInfo(path)
                member.mode = 0o644
                if isinstance(content, Path):
                    member.type, member.linkname = tarfile.SYMTYPE, str(content)
                else:
                    member.size = len(content)
                tar.addfile(member, io.BytesIO(content if member.size else b""))
        data = packed.getvalue()
        file = f"{name}-{version}-0.tar.bz2"
        (self._folder / "noarch" / file).write_bytes(data)
        sums = {"size": len(data), "md5": hashlib.md5(data).hexdigest(), "sha256": hashlib.sha256(data).hexdigest()}
        self._packages[file] = index | sums
        self._write()

    def add_python(self) -> None:
        """Add a package ``python`` that is this machine's interpreter, as an environment of ``venv`` is."""
        base = Path(os.path.realpath(sys.executable))
        settings = f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {_VERSION}\n"
        self.add("python", _VERSION, {"bin/python": base, "pyvenv.cfg": settings.encode()}, depends=[], python=False)

    def add_module(self, name: str, version: str, *, depends: list[str]) -> None:
        """Add a package whose module has ``VERSION``."""
        module = f"VERSION = {version!r}\n".encode()
        self.add(name, version, {f"site-packages/{name}.py": module}, depends=["python", *depends], python=True)

    def _write(self) -> None:
        for subdir, packages in (("noarch", self._packages), (_SUBDIR, {})):
            (self._folder / subdir).mkdir(parents=True, exist_ok=True)
            document = {"info": {"subdir": subdir}, "packages": packages, "packages.conda": {}, "repodata_version": 1}
            (self._folder / subdir / "repodata.json").write_text(json.dumps(document))


def _described(content: bytes | Path) -> dict[str, object]:
    if isinstance(content, Path):
        return {"path_type": "softlink", "size_in_bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    sha256 = hashlib.sha256(content).hexdigest()
    return {"path_type": "hardlink", "size_in_bytes": len(content), "sha256": sha256}


def program(folder: Path) -> str:
    """Return the folder with a program ``conda``: the real one, or a new one in ``folder``."""
    for name in ("mamba", "micromamba", "conda"):
        if found := shutil.which(name):
            return str(Path(found).parent)
    folder.mkdir()
    words = shlex.join([sys.executable, "-P", "-m", "tests.data.conda"])
    root = shlex.quote(str(Path(__file__).parents[2]))
    executable(folder / "conda", f'PYTHONPATH={root} exec {words} "$@"')
    return str(folder)


async def _create(prefix: str, specs: list[str]) -> None:
    import rattler

    channels = os.environ.get("CONDA_CHANNELS", "").split(",")
    channels += [channel for channel, found, _ in (spec.rpartition("::") for spec in specs) if found]
    records = await rattler.solve([rattler.Channel(one) for one in channels if one], specs,
                                  virtual_packages=rattler.VirtualPackage.detect())  # fmt: skip
    await rattler.install(records, prefix, show_progress=False, cache_dir=f"{prefix}.cache")
    shutil.rmtree(f"{prefix}.cache")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["create"])
    parser.add_argument("--yes", action="store_true", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("specs", nargs="+")
    given = parser.parse_args()
    from rattler.exceptions import SolverError

    try:
        asyncio.run(_create(given.prefix, given.specs))
    except SolverError as error:
        print(f"SolverError: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # threads of rattler can crash an interpreter that ends
