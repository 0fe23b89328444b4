"""The installed wheel, as the tools of Jupyter see it, on a PATH without Node.js."""

import re


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
