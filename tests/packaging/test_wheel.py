"""What the wheel holds, and that the source distribution makes the same wheel."""

import json
import re
import subprocess
import sys
import tarfile
from zipfile import ZipFile

import pytest

from distdl_jupyter import __version__
from tests.installation import ROOT, sources

LAB = r"distdl_jupyter-[^/]+\.data/data/share/jupyter/labextensions/distdl-jupyter/"
TEXT = (".js", ".css", ".json", ".orig", ".py", ".html", ".po")


@pytest.fixture(scope="module")
def names(wheel):
    with ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.parametrize("file", [r"schemas/distdl-jupyter/plugin\.json", r"static/third-party-licenses\.json"])
def test_the_wheel_holds_settings_and_licenses(names, file):
    assert any(re.fullmatch(LAB + file, name) for name in names)


def test_the_wheel_holds_every_data_file_of_the_package(names):
    """Catalogues and tables: what a module reads from its own folder."""
    package = ROOT / "distdl_jupyter"
    config = package / "jupyter-config"
    wanted = {
        str(file.relative_to(ROOT))
        for file in sources()
        if file.suffix != ".py" and file.is_relative_to(package) and not file.is_relative_to(config)
    }
    assert wanted - set(names) == set()


def test_the_wheel_holds_nothing_of_the_workshop(names):
    for part in ("node_modules", "/labextension/src", "tests/", ".map", "build_log", "distdl_jupyter/labextension"):
        assert [name for name in names if part in name] == []


def test_no_file_of_the_wheel_names_this_machine(wheel):
    found = []
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            content = archive.read(name) if name.endswith(TEXT) else b""
            if bytes(ROOT) in content or re.search(rb"^//# sourceMappingURL", content, re.MULTILINE):
                found.append(name)
    assert found == []


def test_the_extension_has_the_version_of_the_package(wheel, names):
    description = next(name for name in names if re.fullmatch(LAB + r"package\.json", name))
    with ZipFile(wheel) as archive:
        assert json.loads(archive.read(description))["version"] == __version__


def test_a_curve_is_a_file_of_its_own_and_no_language_is_bundled(wheel, names):
    """plotly weighs a megabyte: what JupyterLab loads at its start must stay far below that."""
    static = [name for name in names if re.match(LAB + r"static/.*\.js$", name)]
    with ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in static}
    large = [name for name, content in files.items() if len(content) > 700_000]
    assert not any(b"plural_forms" in content[:500] for content in files.values())
    assert sum(len(content) for name, content in files.items() if name not in large) < 700_000
    assert not any("remoteEntry" in name for name in large)


@pytest.mark.full
def test_the_source_distribution_makes_a_wheel(tmp_path, names, monkeypatch):
    """With all modules and the front end in it, so that neither pip nor the user needs Node.js."""
    monkeypatch.setenv("HATCH_JUPYTER_BUILDER_SKIP_NPM", "1")
    build(ROOT, "sdist", tmp_path)
    archive = next(tmp_path.glob("*.tar.gz"))
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    source = next(path for path in tmp_path.iterdir() if path.is_dir())
    assert list(source.rglob("node_modules")) == []
    build(source, "wheel", tmp_path)
    with ZipFile(next(tmp_path.glob("*.whl"))) as again:
        made = set(again.namelist())
    assert {str(file.relative_to(source)) for file in source.glob("distdl_jupyter/**/*.py")} - made == set()
    assert {name for name in names if not name.endswith(".py")} - made == set()


def build(project, target, folder):
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
