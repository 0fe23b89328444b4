"""The zip that travels: the same bytes for the same sources, and complete enough to run without an installation."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

from distdl_jupyter.clusters import environment


def test_the_same_sources_give_the_same_bytes():
    assert environment.build_package.__wrapped__() == environment.build_package()
    assert len(environment.build_package().digest) == 16


def test_all_sources_travel_and_nothing_that_is_built():
    names = zipfile.ZipFile(io.BytesIO(environment.build_package().content)).namelist()
    assert "distdl_jupyter/worker/rank.py" in names
    assert "distdl_jupyter/jobs/client.py" in names
    assert {Path(name).suffix for name in names} == {".py"}
    assert len(environment.build_package().content) < 1_600_000


def test_what_runs_there_can_be_imported_where_nothing_is_installed(tmp_path):
    zipfile.ZipFile(io.BytesIO(environment.build_package().content)).extractall(tmp_path)
    code = (
        "import importlib, pathlib, sys\n"
        f"root = pathlib.Path({str(tmp_path)!r}, 'distdl_jupyter')\n"
        "sys.path.insert(0, str(root.parent))\n"
        "wanted = [root / 'backends/rendezvous.py', *root.glob('worker/**/*.py'), *root.glob('node/**/*.py')]\n"
        "for path in wanted:\n"
        "    name = '.'.join(path.relative_to(root.parent).with_suffix('').parts).removesuffix('.__init__')\n"
        "    # matplotlib itself imports its backend.\n"
        "    if not name.endswith(('__main__', '.mplbackend')): importlib.import_module(name)\n"
        "print(sys.modules['distdl_jupyter'].__file__, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "distdl_jupyter" / "__init__.py"), "False"]
