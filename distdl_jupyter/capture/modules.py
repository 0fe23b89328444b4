"""Finds the modules beside the notebook that the code uses, and their files, which are sent with the job.

A module is beside the notebook if it is directly in the notebook's folder, in the working directory or in a folder that
the user added to ``sys.path``; installed packages are excluded. Top-level modules and packages are sent as they are on
disk when the job starts. Nothing is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from distdl_jupyter.capture.notebook import CodeLocation, get_shell
from distdl_jupyter.core import humanize
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.source import list_imports, try_parse
from distdl_jupyter.core.spec import Captured
from distdl_jupyter.worker.installed import has_packages, list_roots

_CODE_SUFFIXES = (".py", ".pyi", ".so", ".pyd")
_SKIPPED_FOLDERS = ("__pycache__", "node_modules")
#: Size limits in bytes of data files in a package: of one file, and in total.
_MAX_FILE_BYTES = 1_000_000
_MAX_DATA_BYTES = 20_000_000
#: Size limit in bytes of all modules. Larger ones are probably unintended and take minutes to read.
_MAX_SIZE = 200_000_000
#: This package itself is installed where the ranks run.
_EXCLUDED_MODULES = ("distdl_jupyter", "__main__")


@dataclass(frozen=True, slots=True)
class LocalModule:
    """One top-level module or package. ``files`` are below ``root``; ``omitted`` are too large to send."""

    name: str
    root: Path
    files: tuple[Path, ...]
    size: int
    origin: str
    is_package: bool = False
    omitted: tuple[Path, ...] = ()

    @property
    def label(self) -> str:
        """File or folder name for display: ``shards.py``, ``mylib/``."""
        return f"{self.name}/" if self.is_package else self.files[0].name

    @property
    def captured(self) -> Captured:
        """Entry in the list of captured names."""
        detail = f"{'package' if self.is_package else 'module'} {self.origin}"
        return Captured(name=self.label, kind="module", detail=detail, size=self.size)

    def iter_texts(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the root, source text) of each Python file."""
        for file in self.files:
            if file.suffix == ".py":
                yield file.as_posix(), (self.root / file).read_text(encoding="utf-8", errors="replace")

    def copy(self, target: Path) -> None:
        """Copy the files to ``target``, with their folders."""
        for file in self.files:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            (target / file).touch(mode=0o600)
            shutil.copyfile(self.root / file, target / file)


def find_roots(location: CodeLocation) -> dict[Path, str]:
    """Return the folders whose modules are sent, each with a description, in search order."""
    roots: dict[Path, str] = {}
    if location.folder is not None:
        roots[location.folder.resolve()] = "in the notebook's folder"
    roots.setdefault(Path.cwd(), "in the notebook's folder" if get_shell() is not None else "in the working directory")
    pth_folders, is_installed = set(_iter_pth_folders()), make_installed_test()
    for folder in (Path(entry).resolve() for entry in sys.path if entry):
        if folder.is_dir() and folder not in pth_folders and "IPython" not in folder.parts and not is_installed(folder):
            roots.setdefault(folder, f"from {folder.name}/")
    return roots


def make_installed_test() -> Callable[[str | Path], bool]:
    """Return a function that tests if a path belongs to this environment, other installed packages or Python."""
    paths = (*list_roots(), *sysconfig.get_paths().values(), sys.prefix, sys.base_prefix)
    folders = {Path(folder).resolve() for folder in paths}

    def is_installed(path: str | Path) -> bool:
        return not folders.isdisjoint((resolved := Path(path).resolve(), *resolved.parents))

    return is_installed


def _iter_pth_folders() -> Iterator[Path]:
    """Yield the folders that ``.pth`` files add to the path: packages installed in editable mode."""
    for packages in {*site.getsitepackages(), *filter(has_packages, sys.path)}:
        for file in Path(packages).glob("*.pth"):
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.strip() and not line.startswith(("import ", "import\t", "#")):
                    yield (Path(packages) / line.strip()).resolve()


def find_modules(names: Iterable[str], folders: dict[Path, str]) -> list[LocalModule]:
    """Return the modules of ``names`` that are in ``folders``, and their imports, recursively.

    Raises InvalidSpec once they are too large to send.
    """
    with contextlib.suppress(RuntimeError):  # another thread may be importing a module
        importlib.invalidate_caches()  # to find new files
    modules: list[LocalModule] = []
    visited = set(_EXCLUDED_MODULES)
    pending = [name.partition(".")[0] for name in names]
    while pending:
        name = pending.pop(0)
        if name in visited:
            continue
        visited.add(name)
        if (module := _find_module(name, folders)) is not None:
            modules.append(module)
            if (total := sum(module.size for module in modules)) > _MAX_SIZE:
                raise InvalidSpec(
                    f"The modules beside the notebook that this job would send, such as {module.label} in "
                    f"{module.root}, take {humanize.size(total)} or more, but the limit is {humanize.size(_MAX_SIZE)}.",
                    code="modules-too-large",
                    field=name,
                    hint=f"Install {name} where the ranks run (pip install), or remove it from sys.path.",
                )
            trees = (tree for _, text in module.iter_texts() if (tree := try_parse(text)) is not None)
            pending.extend(name.partition(".")[0] for tree in trees for name in list_imports(tree))
    return modules


def _find_module(name: str, folders: dict[Path, str]) -> LocalModule | None:
    path = _find_module_path(name, folders)
    if path is None or path.parent not in folders:
        return None
    if not path.exists():
        raise InvalidSpec(
            f"The module {name} was imported from {path}, which no longer exists, so no rank could import it.",
            code="module-source-gone",
            field=name,
            hint="Restore the file, or import what the code needs from another module.",
        )
    files, omitted, data_size = list[Path](), list[Path](), 0
    for file in _iter_package_files(path) if path.is_dir() else [path]:
        size = file.stat().st_size
        if file.suffix not in _CODE_SUFFIXES and (size > _MAX_FILE_BYTES or data_size + size > _MAX_DATA_BYTES):
            omitted.append(file.relative_to(path.parent))
        else:
            files.append(file.relative_to(path.parent))
            data_size += 0 if file.suffix in _CODE_SUFFIXES else size
    size = sum((path.parent / file).stat().st_size for file in files)
    return LocalModule(name, path.parent, tuple(files), size, folders[path.parent], path.is_dir(), tuple(omitted))


def _find_module_path(name: str, folders: dict[Path, str]) -> Path | None:
    """Return the file of a module, or the folder of a package."""
    module = sys.modules.get(name)
    if module is not None:
        origin = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    elif name in sys.stdlib_module_names:
        return None
    else:
        spec = PathFinder.find_spec(name) or PathFinder.find_spec(name, [str(folder) for folder in folders])
        origin = spec.origin if spec is not None and spec.has_location else None
        if spec is not None and not spec.has_location:  # a package without __init__.py
            origin = next(iter(spec.submodule_search_locations or ()), None)
    if not origin:
        return None
    path = Path(origin).parent if Path(origin).name == "__init__.py" else Path(origin)
    # A symlinked module belongs to the folder of the link.
    return path.parent.resolve() / path.name


def _iter_package_files(package: Path) -> Iterator[Path]:
    for path, folders, names in os.walk(package):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _SKIPPED_FOLDERS)
        files = (Path(path) / name for name in sorted(names) if not name.startswith("."))
        yield from (file for file in files if file.is_file())


def build_search_path(location: CodeLocation) -> list[str]:
    """Return the folders for a rank's ``sys.path``: those of sent modules, and package folders that the user added."""
    installed_paths = {*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()}
    user_paths = [entry for entry in sys.path if entry not in installed_paths and has_packages(entry)]
    return list(dict.fromkeys((*map(str, find_roots(location)), *user_paths)))
