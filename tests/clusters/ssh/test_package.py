"""The zip that travels: the same bytes for the same sources, and complete enough to run without an installation."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import distdl_jupyter
from distdl_jupyter.clusters.ssh import package


def test_the_same_sources_give_the_same_bytes():
    root = Path(distdl_jupyter.__file__).parent
    assert package.pack(root, package.PARTS) == package.pack(root, package.PARTS) == package.built().content
    assert len(package.built().digest) == 16


def test_another_source_gives_another_digest(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.py").write_text("1")
    first = package.pack(tmp_path / "a", ("one.py",))
    (tmp_path / "a" / "one.py").write_text("2")
    assert package.pack(tmp_path / "a", ("one.py",)) != first


def test_only_sources_of_the_self_contained_floor_travel():
    names = zipfile.ZipFile(io.BytesIO(package.built().content)).namelist()
    assert "distdl_jupyter/worker/rank.py" in names
    assert "distdl_jupyter/backends/rendezvous.py" in names
    assert not [name for name in names if "__pycache__" in name or "/core/" in name or "/clusters/" in name]


def test_all_of_it_can_be_imported_where_nothing_is_installed(tmp_path):
    zipfile.ZipFile(io.BytesIO(package.built().content)).extractall(tmp_path)
    code = (
        "import importlib, pathlib, sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"for path in sorted(pathlib.Path({str(tmp_path)!r}).rglob('*.py')):\n"
        "    name = '.'.join(path.relative_to(sys.path[0]).with_suffix('').parts).removesuffix('.__init__')\n"
        "    if not name.endswith('__main__'): importlib.import_module(name)\n"
        "print(sys.modules['distdl_jupyter'].__file__, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "distdl_jupyter" / "__init__.py"), "False"]
