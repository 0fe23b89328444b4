"""Modules beside the notebook: which ones the code uses, and which of their files travel with the job.

A module counts as beside the notebook when it lies directly in the notebook's folder, in the working directory or in
a folder that was put on ``sys.path`` by hand: installed packages do not. The unit is a top-level module or package, as
it is on disk at the start of the job. Nothing is imported to find out.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from distdl_jupyter.capture.notebook import CodeLocation, shell
from distdl_jupyter.core import humanize
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.source import imported, parsed
from distdl_jupyter.worker import import_recorder

_CODE = (".py", ".pyi", ".so", ".pyd")
_SKIPPED_FOLDERS = ("__pycache__", "node_modules")
#: Data files inside a package travel up to this size each, and together up to the second one.
_LARGEST_FILE = 1_000_000
_LARGEST_DATA = 20_000_000
_MOST_FILES = 20_000
#: All that travels of modules; what is more was hardly meant to, and takes minutes to read.
_LARGEST = 200_000_000
#: This package itself is installed where the ranks run.
_NEVER = ("distdl_jupyter", "__main__")


@dataclass(frozen=True, slots=True)
class LocalModule:
    """One top-level module or package. ``files`` are below ``root``; ``left_out`` were too large to travel."""

    name: str
    root: Path
    files: tuple[Path, ...]
    size: int
    where: str
    is_package: bool = False
    left_out: tuple[Path, ...] = ()

    @property
    def label(self) -> str:
        """File or folder as lists show it: ``shards.py``, ``mylib/``."""
        return f"{self.name}/" if self.is_package else self.files[0].name

    @property
    def detail(self) -> str:
        """What it is: ``module beside the notebook``."""
        return f"{'package' if self.is_package else 'module'} {self.where}"

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the root, source text) of each Python file."""
        for file in self.files:
            if file.suffix == ".py":
                yield file.as_posix(), (self.root / file).read_text(encoding="utf-8", errors="replace")

    def copy(self, target: Path) -> None:
        """Copy the files below ``target``, keeping their folders."""
        for file in self.files:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            (target / file).touch(mode=0o600)
            shutil.copyfile(self.root / file, target / file)


def roots(location: CodeLocation) -> dict[Path, str]:
    """Return the folders whose modules travel, each with words for where that is; first come, first served."""
    folders: dict[Path, str] = {}
    if location.folder is not None:
        folders[location.folder.resolve()] = "in the notebook's folder"
    here = Path.cwd()
    folders.setdefault(here, "in the notebook's folder" if shell() is not None else "in the working directory")
    for folder in _added_by_hand():
        folders.setdefault(folder, f"from {folder.name}/")
    return folders


def _added_by_hand() -> Iterator[Path]:
    by_pth, is_installed = set(_pth_folders()), installed()
    for entry in sys.path:
        folder = Path(entry).resolve()
        if not entry or not folder.is_dir() or folder in by_pth or "IPython" in folder.parts:
            continue
        if not is_installed(folder):
            yield folder


def installed() -> Callable[[str | Path], bool]:
    """Return what says whether a path belongs to this Python environment, to other installed packages or to Python."""
    paths = (*import_recorder.installed_roots(), *sysconfig.get_paths().values(), sys.prefix, sys.base_prefix)
    folders = {Path(folder).resolve() for folder in paths}

    def is_installed(path: str | Path) -> bool:
        return not folders.isdisjoint((here := Path(path).resolve(), *here.parents))

    return is_installed


def _pth_folders() -> Iterator[Path]:
    """Yield the folders that ``.pth`` files put on the path: packages installed in editable form."""
    for packages in {*site.getsitepackages(), *filter(import_recorder.holds_packages, sys.path)}:
        for file in Path(packages).glob("*.pth"):
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.strip() and not line.startswith(("import ", "import\t", "#")):
                    yield (Path(packages) / line.strip()).resolve()


def _find_new_files() -> None:
    """Let Python list the folders of its path anew; an import in another thread breaks that off."""
    for _ in range(5):
        with contextlib.suppress(RuntimeError):  # "dictionary changed size during iteration"
            importlib.invalidate_caches()
            return


def local_modules(names: Iterable[str], folders: dict[Path, str]) -> list[LocalModule]:
    """Return the modules of ``names`` that lie in ``folders``, and those that they import in turn.

    Raises InvalidSpec when they are too large to travel, as soon as that is known.
    """
    _find_new_files()
    shipped: dict[str, LocalModule | None] = {}
    pending = [name.partition(".")[0] for name in names]
    while pending:
        name = pending.pop(0)
        if name in shipped or name in _NEVER:
            continue
        module = shipped[name] = _find(name, folders)
        if module is not None:
            _refuse_many([entry for entry in shipped.values() if entry is not None])
            pending.extend(_imports_of(module))
    return [module for module in shipped.values() if module is not None]


def _refuse_many(modules: Sequence[LocalModule]) -> None:
    total = sum(module.size for module in modules)
    if total > _LARGEST:
        largest = max(modules, key=lambda module: module.size)
        raise InvalidSpec(
            f"The modules in the notebook's folder that this job would send are {humanize.size(total)} or more in size "
            f"({largest.label} in {largest.root} alone has {humanize.size(largest.size)}), but the limit is "
            f"{humanize.size(_LARGEST)}.",
            code="modules-too-large",
            field=largest.name,
            hint=f"Install {largest.name} where the ranks run (pip install), or remove it from sys.path.",
        )


def _imports_of(module: LocalModule) -> list[str]:
    names: list[str] = []
    for _, text in module.texts():
        if (tree := parsed(text)) is not None:
            names.extend(imported(tree))
    return names


def _find(name: str, folders: dict[Path, str]) -> LocalModule | None:
    location = _location(name, folders)
    if location is None:
        return None
    is_package = location.name == "__init__.py" or location.is_dir()
    top = location.parent if location.name == "__init__.py" else location
    root = top.parent
    if root not in folders:
        return None
    if not top.exists():
        raise InvalidSpec(
            f"The module {name} was imported from {top}, which no longer exists, so no rank could import it.",
            code="module-source-gone",
            field=name,
            hint="Restore the file, or import what the code needs from elsewhere.",
        )
    files, left_out = _package_files(top) if is_package else ([top], [])
    return LocalModule(
        name=name,
        root=root,
        files=tuple(file.relative_to(root) for file in files),
        size=sum(file.stat().st_size for file in files),
        where=folders[root],
        is_package=is_package,
        left_out=tuple(file.relative_to(root) for file in left_out),
    )


def _location(name: str, folders: dict[Path, str]) -> Path | None:
    """Return the file (or the folder of a package without ``__init__.py``) from which ``name`` is imported."""
    module = sys.modules.get(name)
    if module is not None:
        return _resolved(getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None))
    if name in sys.stdlib_module_names:
        return None
    spec = PathFinder.find_spec(name) or PathFinder.find_spec(name, [str(folder) for folder in folders])
    return _location_of_spec(spec) if spec is not None else None


def _location_of_spec(spec: ModuleSpec) -> Path | None:
    if spec.has_location:
        return _resolved(spec.origin)
    return _resolved(next(iter(spec.submodule_search_locations or ()), None))


def _resolved(path: str | None) -> Path | None:
    """Return the path with its folder's links followed but not its own: a linked module belongs where the link is."""
    if not path:
        return None
    here = Path(path)
    if here.name == "__init__.py":
        return here.parent.parent.resolve() / here.parent.name / here.name
    return here.parent.resolve() / here.name


def _package_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of a package that travel and those that are too large to."""
    shipped: list[Path] = []
    left_out: list[Path] = []
    data = 0
    for number, file in enumerate(_walk(folder)):
        size = file.stat().st_size
        if file.suffix in _CODE:
            shipped.append(file)
        elif number < _MOST_FILES and size <= _LARGEST_FILE and data + size <= _LARGEST_DATA:
            shipped.append(file)
            data += size
        else:
            left_out.append(file)
    return shipped, left_out


def _walk(folder: Path) -> Iterator[Path]:
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED_FOLDERS)
        yield from (Path(path) / f for f in sorted(files) if not f.startswith(".") and (Path(path) / f).is_file())


def search_path(location: CodeLocation) -> list[str]:
    """Return the folders for a rank's ``sys.path``: those whose modules travel, and of packages put there by hand."""
    installed_paths = {*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()}
    by_hand = [entry for entry in sys.path if entry not in installed_paths and import_recorder.holds_packages(entry)]
    return list(dict.fromkeys((*map(str, roots(location)), *by_hand)))
