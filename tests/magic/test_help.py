"""``--help`` and ``-h`` show the help of every magic, whatever else is missing on the line or in the cell."""

import pytest

from distdl_jupyter import jobs
from distdl_jupyter.magic import commands
from tests.packaging import surface

pytestmark = pytest.mark.timeout(600)

NAMES = [name for name in surface.magics() if " " not in name]
CELLS = [name for name in NAMES if name.startswith("%%")]
LINES = [name for name in NAMES if not name.startswith("%%")]
COMMANDS = {f"%{name}": " ".join(["distdl", *words.split()[:1]]) for name, words in commands.COMMANDS.items()}


def test_the_list_of_magics_is_whole(shared_kernel):
    shared_kernel.ok("def ours(kind): return [name for name, f in get_ipython().magics_manager.magics[kind].items()\n"
                     "    if 'distdl_jupyter' in str(getattr(f, '__module__', ''))]")  # fmt: skip
    for kind, names in (("cell", CELLS), ("line", LINES)):
        registered = eval(shared_kernel.ok(f"ours({kind!r})").value["text/plain"])
        assert sorted(registered) == sorted(name.lstrip("%") for name in names)


@pytest.mark.parametrize(
    "cell",
    [
        *(f"{name} {flag}\n1" for name in CELLS for flag in ("--help", "-h", "-p 2 --help")),
        *(f"{name} {flag}" for name in LINES for flag in ("--help", "-h")),
        "%%sweep lr=0.1,0.2 --help\n1",
        "%%sweep --help lr\n1",
        "%%distributed --unknown --help\n1",
        *(f"%dist_ranks {action} --help" for action in ("start", "push", "attach")),
        *(f"%dist_config {topic} --help" for topic in ("azure", "name=x")),
    ],
)
def test_help_is_shown_and_nothing_is_refused(shared_kernel, cell):
    ran = shared_kernel.ok(cell)
    name = cell.split()[0]
    usage = COMMANDS.get(name) or (f"%{name}" if f"%{name}" in CELLS else name)
    assert ran.text.startswith(f"usage: {usage} ")
    assert jobs() == []


def test_a_cell_without_help_or_body_is_still_refused(shared_kernel):
    for cell in ("%%distributed -p 2", "%%sweep lr=1,2", "%%distributed\n--help = 1"):
        ran = shared_kernel.run(cell)
        assert ran.error or ran.text.startswith("UsageError"), cell
    assert jobs() == []
