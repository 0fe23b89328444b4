"""Errors of real ranks: the line of the cell, the owner of each frame, values and a hint."""

import errno
import json
import sys
import textwrap

import pytest

from distdl_jupyter.worker import failure
from tests.worker import ranks

TRAINING = """\
import torch
import torch.nn.functional as F
from shards import Batch

model = torch.nn.Linear(4, 2)
api_token = 'abc123secret'
for step in range(3):
    image = torch.ones(8, 4)
    batch = Batch({"image": image, "target": torch.zeros(8)})
    loss = F.cross_entropy(model(batch["image"]), batch["label"]) * len(api_token)
"""
SHARDS = """\
class Batch:
    def __init__(self, arrays):
        self.arrays = arrays

    def keys(self):
        return self.arrays.keys()

    def __getitem__(self, key):
        return self.arrays[key]
"""


def test_an_error_has_the_cells_line_below_a_magic_line_and_a_clean_traceback(folder):
    """Line 11 of the notebook's cell is line 10 of its code, because the magic line stands above."""
    (folder.path / "code" / "shards.py").write_text(SHARDS)
    ended = ranks.run(folder.cell(TRAINING, first_line=2))
    assert ended.code == 1
    error = ended.error
    assert (error["type"], error["message"]) == ("KeyError", "'label'")
    assert [(f["kind"], f["label"]) for f in error["frames"] if f["kind"] != "worker"] == [
        ("cell", "Cell [7] in quickstart.ipynb"),
        ("user", "shards.py"),
    ]
    cell, module = error["frames"][-2:]
    assert (cell["line"], cell["cell"], cell["function"]) == (11, 7, "<module>")
    assert cell["source"][0] == [9, "    image = torch.ones(8, 4)"]
    assert cell["source"][2][0] == 11
    assert cell["source"][2][1].startswith("    loss = F.cross_entropy(")
    assert len(cell["source"]) == 3, "the cell ends there"
    assert (module["line"], module["function"], module["cell"]) == (9, "Batch.__getitem__", None)
    assert module["file"] == str(folder.path / "code" / "shards.py")
    assert error["values_at"] == error["frames"].index(cell)
    assert error["values"] == [
        ["step", "0"],
        ["model", "Linear"],
        ["batch", "Batch, keys image, target"],
        ["api_token", "•••"],
    ]
    assert error["hint"] == "The keys of `batch` are image and target."
    assert error["causes"] == []
    assert ended.reports[0]["t"] <= error["time"] <= ended.result["t"] + 1
    # The printed traceback shows the cell and not the worker.
    assert ended.err == error["traceback"]
    lines = ended.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == '  File "Cell [7] in quickstart.ipynb", line 11, in <module>'
    assert lines[2].strip().startswith('loss = F.cross_entropy(model(batch["image"])')
    assert lines[-1] == "KeyError: 'label'"
    assert lines[4:6] == ['  File "shards.py", line 9, in __getitem__', "    return self.arrays[key]"]
    assert "worker" not in ended.err


def test_what_python_prints_itself_shows_the_notebook_s_lines(folder):
    code = "import traceback, warnings\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
    code += "warnings.warn('old')"
    ended = ranks.run(folder.cell(code, first_line=2))
    assert 'File "<Cell [7] in quickstart.ipynb>", line 4, in <module>\n    1 / 0' in ended.err
    assert ":7: UserWarning: old\n  warnings.warn('old')" in ended.err


def test_a_function_of_another_cell_is_shown_in_its_own_cell(folder):
    other = "def divide(a, b):\n    return a / b\n"
    namespace = {"__name__": "__main__"}
    exec(compile(other, "/tmp/ipykernel_42/7.py", "exec"), namespace)
    label = "Cell [3] in quickstart.ipynb"
    sources = {"/tmp/ipykernel_42/7.py": {"text": other, "label": label, "cell": 3, "first_line": 1}}
    ended = ranks.run(folder.cell("divide(1, 0)", values={"divide": namespace["divide"]}, more=sources))
    inner = ended.error["frames"][-1]
    assert (inner["label"], inner["line"], inner["cell"], inner["kind"]) == (label, 2, 3, "cell")
    assert ended.error["values"] == [["a", "1"], ["b", "0"]]
    assert 'File "Cell [3] in quickstart.ipynb", line 2, in divide\n    return a / b' in ended.err


def test_a_script_s_error_has_its_own_frames_only(folder, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("def main(path):\n    return open(path)\n\nmain('data/missing.csv')\n")
    ended = ranks.run(folder.script(script))
    own = [frame for frame in ended.error["frames"] if frame["kind"] == "user"]
    assert [(frame["label"], frame["line"]) for frame in own] == [("train.py", 4), ("train.py", 2)]
    assert {frame["kind"] for frame in ended.error["frames"]} == {"worker", "user"}
    assert ended.err.splitlines()[1] == f'  File "{script}", line 4, in <module>'
    assert ended.error["values"] == [["path", "'data/missing.csv'"]]
    assert ended.error["hint"] == f"The path is relative to the job's working directory, {folder.path}."


def test_library_frames_are_told_apart(folder):
    ended = ranks.run(folder.cell("import json\njson.loads('{')"))
    kinds = [frame["kind"] for frame in ended.error["frames"]]
    assert kinds[-1] == "library"
    assert ended.error["frames"][-1]["label"] == "json/decoder.py"
    assert ended.error["frames"][-1]["source"] == []


def test_causes_are_reported(folder):
    code = "try:\n    {}['x']\nexcept KeyError as error:\n    raise RuntimeError('no shard') from error"
    ended = ranks.run(folder.cell(code))
    assert ended.error["type"] == "RuntimeError"
    (cause,) = ended.error["causes"]
    assert (cause["type"], cause["message"], cause["frames"][-1]["line"]) == ("KeyError", "'x'", 2)
    assert "direct cause" in ended.err


def test_deep_recursion_stays_small(folder):
    ended = ranks.run(folder.cell("def f(n):\n    return f(n + 1)\nf(0)"))
    assert ended.error["type"] == "RecursionError"
    assert len(ended.error["frames"]) <= 80
    assert len(json.dumps(ended.error)) < 60_000


def test_an_error_that_cannot_be_shown_still_arrives(folder):
    code = """
class Odd(Exception):
    def __str__(self):
        raise ValueError('no text')
class Slow:
    def __repr__(self):
        import time; time.sleep(1000)
    def __getattr__(self, name):
        import time; time.sleep(1000)
slow = Slow()
raise Odd(slow)
"""
    ended = ranks.run(folder.cell(code))
    assert (ended.code, ended.error["type"], ended.error["message"]) == (1, "Odd", "")
    assert ended.error["values"] == [["slow", "Slow"]]


HINTS = {
    "a mapping's keys": (
        "config = {'lr': 0.1, 'epochs': 3, 'batch': 32}\nconfig['epoch']",
        "The keys of `config` are lr, epochs and batch.",
    ),
    "an empty mapping": ("rows = {}\nrows['a']", "`rows` is empty."),
    "an attribute's keys": (
        "class T: pass\nself = T()\nself.parts = {'a': 1}\nkey = 'b'\nself.parts[key]",
        "The only key of `self.parts` is a.",
    ),
    "a layer of a model": (
        textwrap.dedent("""
            import torch
            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.fc = torch.nn.Linear(128, 10)
                def forward(self, x):
                    return self.fc(x)
            Net()(torch.ones(2, 3))
        """),
        "`self.fc` expects 128 features, but `x` (2 \N{MULTIPLICATION SIGN} 3) has 3.",
    ),
    "a product": (
        "import torch\nx, w = torch.ones(32, 64), torch.ones(128, 10)\nx @ w",
        "`x` is 32 \N{MULTIPLICATION SIGN} 64 and `w` is 128 \N{MULTIPLICATION SIGN} 10.",
    ),
    "a sum of arrays": (
        "import numpy as np\na, b = np.ones((3, 4)), np.ones((5, 4))\na + b",
        "`a` is 3 \N{MULTIPLICATION SIGN} 4 and `b` is 5 \N{MULTIPLICATION SIGN} 4.",
    ),
    "a module": (
        "import shards_of_mine",
        f"`shards_of_mine` is not installed for {sys.executable}, and shards_of_mine.py was not sent with the job.",
    ),
    "a name": (
        "modle(1)",
        "`modle` is not defined in the cell or the notebook. Define it before using it.",
    ),
    "torch's init": (
        "import torch.distributed as dist\nimport torch\ndist.all_reduce(torch.ones(1))",
        "Call torch.distributed.init_process_group() at the top of the cell, before any other distributed call.",
    ),
    "Horovod's init": (
        "import horovod.torch as hvd\nhvd.rank()",
        "Call hvd.init() at the top of the cell, before any other Horovod call.",
    ),
    "a data loader": (
        textwrap.dedent("""
            import torch
            class Broken(torch.utils.data.Dataset):
                def __len__(self): return 4
                def __getitem__(self, n): return {}['label']
            next(iter(torch.utils.data.DataLoader(Broken(), num_workers=1)))
        """),
        "It was raised in a DataLoader worker process: KeyError: 'label'",
    ),
    "a limit of open files, which the report itself meets": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "files = [open('/dev/null') for _ in range(100)]",
        "The limit of open files per process is 64. Close files after reading them, raise the limit with 'ulimit -n' "
        'where the job is submitted, or call torch.multiprocessing.set_sharing_strategy("file_system").',
    ),
    "nothing known": ("raise ValueError('x')", ""),
    "another key error": ("d = {'a': 1}\ndef f(): raise KeyError('zz')\nd['a'], f()", ""),
}


@pytest.mark.parametrize("name", HINTS)
def test_hints(folder, name):
    code, hint = HINTS[name]
    ended = ranks.run(folder.cell(code))
    assert ended.code == 1
    assert ended.error["hint"] == hint, ended.err


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("port-in-use", OSError(errno.EADDRINUSE, "Address already in use")),
        ("port-in-use", RuntimeError("The server socket has failed to listen (errno: EADDRINUSE)")),
        ("nccl-without-gpu", RuntimeError("Distributed package doesn't have NCCL built in")),
        ("nccl-without-gpu", ValueError("ProcessGroupNCCL is only supported with GPUs, no GPUs found!")),
        ("nccl-shared-gpu", RuntimeError("ncclInvalidUsage ... Duplicate GPU detected : rank 1 and rank 0")),
        ("nccl-invalid-usage", RuntimeError("ncclCommInitRank failed: invalid usage")),
        ("nccl-peer-lost", RuntimeError("NCCL error in: x.cpp:94, remote process exited or a network error")),
        ("no-gpu", AssertionError("Torch not compiled with CUDA enabled")),
        ("shared-memory-full", RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")),
        ("gpu-memory-full", RuntimeError("CUDA error: out of memory")),
        ("", RuntimeError("x")),
    ],
)
def test_the_text_of_an_error_gives_its_code(code, error):
    assert failure.find_hint(error, ())[0] == code
