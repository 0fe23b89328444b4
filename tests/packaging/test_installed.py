"""The installed wheel, as the tools of Jupyter see it, on a PATH without Node.js."""

import re
import shutil


def test_no_node_is_found(installed):
    assert shutil.which("python", path=installed.path) == str(installed.python)
    assert [name for name in ("node", "npm", "yarn") if shutil.which(name, path=installed.path)] == []


def test_the_package_comes_from_the_wheel(installed):
    where = installed.run("python", "-c", "import distdl_jupyter as d, torch; print(d.__file__)").strip()
    assert where == str(next(installed.prefix.glob("lib/python*/site-packages/distdl_jupyter/__init__.py")))


def test_nothing_of_the_source_tree_is_on_the_path(installed):
    printed = installed.run("python", "-c", "import sys; print(*sys.path, sep='\\n')")
    assert all(str(installed.prefix) in line or "site-packages" not in line for line in printed.splitlines())
    assert "tests" not in [line.rpartition("/")[2] for line in printed.splitlines()]


def test_the_server_extension_is_ok(installed):
    printed = plain(installed.run("jupyter", "server", "extension", "list"))
    assert re.search(r"distdl_jupyter enabled\n.*\n\s+distdl_jupyter \S* ?OK", printed), printed


def test_the_lab_extension_is_ok(installed):
    printed = plain(installed.run("jupyter", "labextension", "list"))
    assert re.search(r"distdl-jupyter v\S+ enabled OK \(python, distdl-jupyter\)", printed), printed
    assert f"{installed.prefix}/share/jupyter/labextensions" in printed


def test_the_command_is_there(installed):
    assert "distdl" in installed.run("distdl", "--help")


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
