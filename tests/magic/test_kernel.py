"""The magics in a real kernel, with real jobs."""

import functools
import re
import sys
import time
from pathlib import Path

import pytest

from distdl_jupyter import jobs
from distdl_jupyter.core.events import State
from tests.conftest import wait_for

pytestmark = pytest.mark.timeout(600)
JOB_MIME = "application/vnd.distdl.job+json"


def test_a_cell_runs_on_every_rank_and_its_value_comes_back(kernel, notebooks):
    (notebooks / "shards.py").write_text("def share(x, rank, size): return x[rank::size]\n")
    kernel.ok("import numpy as np, shards\ndata = np.arange(6.0)")
    kernel.ok("def part(hvd):\n    return float(shards.share(data, hvd.rank(), hvd.size()).sum())")
    started = time.monotonic()
    ran = kernel.ok(
        "%%distributed -p 2 -b horovod-gloo --name digits -o job --env MY_TOKEN=s3cret --env PLAIN=1\n"
        "import os\nimport horovod.torch as hvd\n\nhvd.init()\n"
        "print('rank', hvd.rank(), len(os.environ['MY_TOKEN']), os.environ['PLAIN'])\n"
        "(hvd.rank(), part(hvd))",
        cell_id="cell-abc",
    )
    assert time.monotonic() - started < 30
    assert ran.shown[0][JOB_MIME]["id"] == jobs()[0].id
    assert ran.value is None
    assert eval(kernel.ok("job.results()").value["text/plain"]) == [(0, 6.0), (1, 9.0)]
    spec = jobs()[0].spec
    assert spec.name == "digits"
    assert (spec.source.cell_id, spec.source.execution_count, spec.source.first_line) == ("cell-abc", 4, 2)
    assert spec.source.notebook == str(notebooks / "quickstart.ipynb")
    assert spec.source.command == (
        "%%distributed -p 2 -b horovod-gloo --name digits -o job --env 'MY_TOKEN=•••' --env PLAIN=1"
    )
    assert [one.name for one in spec.captured] == ["part", "data", "shards.py"]
    assert {str(line) for line in jobs()[0].logs() if line.rank is not None} == {"rank 0 6 1", "rank 1 6 1"}
    for file in jobs()[0].folder.path.rglob("*"):
        assert file.is_dir() or b"s3cret" not in file.read_bytes(), file


def test_a_notebook_that_a_program_runs_waits_for_its_jobs(kernel):
    assert kernel.ok("%%distributed --no-panel -o job\n42", by_program=True).value is None
    assert kernel.ok("job.state.value").value == {"text/plain": "'completed'"}
    ran = kernel.run("%%distributed --no-panel\nraise ValueError('no good')", by_program=True)
    assert ran.error.startswith("JobFailed: ")
    kernel.ok("%%distributed --no-panel --no-wait -o job\nimport time\ntime.sleep(600)", by_program=True)
    kernel.ok("assert not job.state.ended\njob.cancel(now=True)")


def test_a_cell_whose_values_take_long_to_pack_says_so(kernel):
    kernel.ok(
        "from distdl_jupyter.magic import cell\ncell._SLOW_SECONDS = 0.2\n"
        "import time\nclass Slow:\n    def __reduce__(self):\n        time.sleep(0.5)\n        return dict, ()\n"
        "slow = Slow()"
    )
    ran = kernel.ok("%%distributed --no-panel --wait\nlen(slow)")
    assert ran.value == {"text/plain": "0"}
    said, captured = ran.text.splitlines()[:2]
    assert said == "Packing the variables and modules that the cell uses ..."
    assert captured.startswith("Captured ")


def test_with_wait_the_value_is_the_cells_and_a_failure_is_raised(kernel):
    kernel.ok("scale = 10")
    ran = kernel.ok("%%distributed -p 2 -b torch --wait --no-panel\nimport os\nint(os.environ['RANK']) + scale")
    assert ran.value == {"text/plain": "10"}
    assert ran.text.startswith("Captured 1 name, ")
    assert "Warning: The cell never initializes torch.distributed" in ran.text
    assert re.search(r"Started quickstart \[3\] \(.*\): 1 . 2 = 2 processes, torch on local", ran.text)
    assert kernel.ok("%%distributed --wait --no-panel\nscale;").value is None

    kernel.ok("def deep(x):\n    return {'image': 1}[x]")
    ran = kernel.run(
        "%%distributed -p 2 -b torch --wait --no-panel -o bad\nimport os, time\n\n"
        "if os.environ['RANK'] == '1':\n    deep('label')\ntime.sleep(60)"
    )
    assert ran.error.startswith(
        "JobFailed: Rank 1 of 2 failed first: KeyError: 'label', in Cell [5] in quickstart.ipynb, line 2."
    )
    assert 'File "Cell [6] in quickstart.ipynb", line 5, in <module>' in ran.traceback
    assert 'File "Cell [5] in quickstart.ipynb", line 2, in deep' in ran.traceback
    assert "distdl_jupyter" not in ran.traceback, "only what happened in the rank is shown"
    assert kernel.ok("bad.state.value").value == {"text/plain": "'failed'"}


def test_the_panel_stays_and_shows_the_end(kernel):
    ran = kernel.ok("%%distributed --wait\nprint('x')\n41 + 1")
    assert ran.value == {"text/plain": "42"}
    assert "Completed" in ran.shown[-1]["text/plain"]
    assert ran.shown[-1][JOB_MIME]["id"] == jobs()[0].id


@pytest.mark.parametrize(
    ("code", "name"), [("def train():\n    return 1", "train()"), ("class Trainer:\n    x = 1", "Trainer")]
)
def test_a_cell_that_only_defines_something_is_named_before_the_start_and_at_the_end(kernel, code, name):
    ran = kernel.ok(f"%%distributed --wait --no-panel\n{code}")
    assert f"Warning: The cell defines {name} but never" in ran.text
    end = kernel.ok(f"%%distributed --wait\n{code}").shown[-1]["text/plain"]
    assert "Completed" in end
    assert f"Warning: The cell defines {name} but never" in end


WORKER = """\
import multiprocessing, os, torch, torch.distributed as dist
def worker(rank, size):
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    dist.all_reduce(total := torch.ones(1))
    os.write(1, f"sum {int(total)}\\n".encode())  # at once: both share the pipe
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "start",
    [
        "torch.multiprocessing.start_processes(worker, args=(2,), nprocs=2, start_method='fork')",
        "both = [multiprocessing.Process(target=worker, args=(rank, 2)) for rank in range(2)]\n"
        "[one.start() for one in both], [one.join() for one in both]",
    ],
)
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="multiprocessing.Process no longer forks")
def test_code_that_starts_its_own_processes_runs_on_one_and_is_warned_about_before_more_start(kernel, start):
    kernel.ok(f"%%distributed -b torch --wait --no-panel\n{WORKER}{start};")
    job = jobs()[0]
    assert [line.text for line in job.logs()].count("sum 2") == 2
    assert "own-processes" not in {finding["code"] for finding in job.spec.findings}
    ran = kernel.run(f"%%distributed -b torch -p 2 --no-panel -o job\n{WORKER}{start};")
    assert "starts new processes in each of the 2 processes" in ran.text
    assert "Use one process (-p 1), or call worker(rank, size) directly" in ran.text
    jobs()[0].cancel(now=True)
    jobs()[0].wait(60)


SLOW = "import time, signal\nprint('up', flush=True)\n"


def running():
    found = jobs()
    return found and found[0].state is State.RUNNING and any("up" in str(line) for line in found[0].logs())


def test_an_interrupt_cancels_a_job_that_is_waited_for(kernel):
    done = []

    def during(text):
        if "Started" in text and not done:
            done.append(wait_for(running))
            kernel.interrupt()

    ran = kernel.run(f"%%distributed -p 2 -b torch --wait --no-panel -o job\n{SLOW}time.sleep(300)", during=during)
    assert "Canceling job quickstart [2]" in ran.text
    assert ran.error.startswith("JobFailed: Job quickstart [2]")
    assert "was canceled" in ran.error
    assert jobs()[0].state is State.CANCELED
    assert kernel.ok("job.state.value").value == {"text/plain": "'canceled'"}


def test_a_second_interrupt_kills_it(kernel):
    done = []

    def during(text):
        if "Started" in text and not done:
            done.append(wait_for(running))
            kernel.interrupt()
        elif "Canceling" in text and len(done) == 1:
            done.append(True)
            kernel.interrupt()

    stubborn = f"{SLOW}for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\n"
    stubborn += "print('up', flush=True)\ntime.sleep(300)"
    started = time.monotonic()
    ran = kernel.run(f"%%distributed --wait --no-panel --stop-grace-seconds 200\n{stubborn}", during=during)
    assert "Killing job" in ran.text
    assert "was canceled" in ran.error
    assert time.monotonic() - started < 100, "the grace of 200 s was not waited for"


def test_an_interrupt_of_another_cell_leaves_jobs_alone(kernel):
    kernel.ok(f"%%distributed --no-panel\n{SLOW}time.sleep(300)")
    wait_for(running)
    # Once: the words and the end of their line may come one by one, and an idle kernel forgets its answer over it.
    interrupt = functools.cache(kernel.interrupt)
    ran = kernel.run("import time\nprint('waiting', flush=True)\ntime.sleep(60)", during=lambda _: interrupt())
    assert ran.error.startswith("KeyboardInterrupt")
    assert jobs()[0].state is State.RUNNING
    assert "Killing job quickstart [2]" in kernel.ok("%dist_cancel --now").text
    wait_for(lambda: jobs()[0].state.ended)


def test_clusters_are_listed_and_checked(kernel):
    table = kernel.ok("%dist_clusters").value
    assert table["text/plain"].splitlines()[1].split()[:2] == ["local", "local"]
    assert "<table>" in table["text/html"]
    assert "Reachable" in kernel.ok("%dist_clusters check local -b torch").value["text/plain"]
    wrong = kernel.run("%dist_clusters check nowhere").error
    assert wrong.startswith("ClusterNotFound: Unknown cluster 'nowhere'.")


@pytest.mark.full
def test_where_ranks_stand_is_shown_also_when_the_job_has_ended(kernel):
    kernel.ok(f"%%distributed -p 2 -b torch --no-panel -o job\n{SLOW}time.sleep(300)")
    wait_for(running)
    shown = wait_for(lambda: (found := kernel.ok("%dist_stacks").value) and "300" in found["text/plain"] and found)
    assert (
        "are in In [2], line 4" in shown["text/plain"] or "Cell [2] in quickstart.ipynb, line 4" in shown["text/plain"]
    )
    assert "time.sleep(300)" in shown["text/html"]
    kernel.ok("%dist_cancel --now")
    wait_for(lambda: jobs()[0].state.ended)
    assert "time.sleep(300)" in kernel.ok("%dist_stacks --recorded").value["text/plain"]
    assert "has no stack dump 99" in kernel.run("%dist_stacks --recorded 99").error


def test_line_magics(kernel):
    assert "No jobs yet" in kernel.ok("%dist_jobs").value["text/plain"]
    assert kernel.run("%dist_logs").error.startswith("JobNotFound: There are no jobs yet.")
    kernel.ok(
        "%%distributed -p 2 -b torch --no-panel --wait --name '<b>first</b>'\n"
        "import os\nprint('hello', os.environ['RANK'])"
    )
    kernel.ok("%%distributed --no-panel --wait --name second\nfor i in range(300): print(i)")
    first, second = (next(job.id for job in jobs() if job.name == name) for name in ("<b>first</b>", "second"))

    table = kernel.ok("%dist_jobs").value
    assert {row.split()[0] for row in table["text/plain"].splitlines()[1:]} == {first, second}
    assert "&lt;b&gt;first" in table["text/html"]
    assert "<b>first" not in table["text/html"]

    short = first.rsplit("-", 1)[1]
    lines = kernel.ok(f"%dist_logs {first}").text.splitlines()
    assert sorted(line for line in lines if not line.startswith("[job]")) == ["[0] hello 0", "[1] hello 1"]
    assert kernel.ok(f"%dist_logs {short} --rank 1").text.strip() == "hello 1"
    lines = kernel.ok("%dist_logs --tail 5 --rank 0").text.splitlines()
    assert lines == ["295 earlier lines not shown; use --tail 0 to print all lines", "295", "296", "297", "298", "299"]
    assert len(kernel.ok("%dist_logs --tail 0 --rank 0").text.splitlines()) == 300

    kernel.ok(f"job = %dist_attach {first}")
    assert kernel.ok("job.id").value == {"text/plain": repr(first)}
    shown = kernel.ok("%dist_attach").shown
    assert shown[0][JOB_MIME]["id"] == second
    assert f"Job {second} has ended" in kernel.ok("%dist_cancel").text
    assert "ipykernel==" in kernel.ok(f"%distdl environment {short}").text
    kernel.ok(f"same = %distdl show {short}")
    assert kernel.ok("same == job").value == {"text/plain": "True"}
    assert kernel.run("%dist_attach zzzz").error.startswith("JobNotFound: Unknown job 'zzzz'.")


def test_defaults_of_this_kernel(kernel):
    assert "No defaults are set" in kernel.ok("%dist_config").text
    assert kernel.ok("%dist_config process_count_per_node=2 backend=torch env=API_KEY=abc").text.splitlines() == [
        "distributed_backend = torch", "environment_variables = API_KEY=•••", "process_count_per_node = 2",
    ]  # fmt: skip
    kernel.ok("%%distributed --no-panel --wait\nimport os\nlen(os.environ['API_KEY'])")
    spec = jobs()[0].spec
    assert (spec.process_count, spec.distributed_backend, spec.secret_variables) == (2, "torch", ("API_KEY",))
    kernel.ok("%%distributed --no-panel --wait -p 1 -b plain\n1")
    assert jobs()[0].spec.process_count == 1
    kernel.ok("%dist_config --clear")
    assert "No defaults are set" in kernel.ok("%dist_config").text


@pytest.mark.parametrize(
    ("cell", "error"),
    [
        ("%%distributed --foo 3\n1", "InvalidSpec: Unknown option '--foo'."),
        ("%%distributed\nx = = 3", "InvalidSpec: Line 2 of the cell is not valid Python: invalid syntax."),
        ("\n\n%%distributed\n\n!ls", "InvalidSpec: Line 5 of the cell, `!ls`, is a shell command"),
        ("%%distributed\nprint(lock)", "InvalidSpec: lock cannot be sent to the ranks: it is a lock."),
        ("%%distributed -o 1x\n1", "InvalidSpec: --out must be a variable name, not '1x'."),
        (
            "%%distributed -p 2\nimport horovod.torch as hvd\nhvd.init()",
            "InvalidSpec: The code calls hvd.init() in line 3",
        ),
    ],
)
def test_refusals_are_one_line_and_start_nothing(shared_kernel, cell, error):
    ran = shared_kernel.run(cell)
    assert ran.error.startswith(error)
    assert "site-packages" not in ran.traceback
    assert "/magic/" not in ran.traceback
    assert len(ran.traceback.splitlines()) <= 4
    assert jobs() == []


def test_a_refused_call_shows_the_lines_of_the_notebook_and_none_of_the_package(shared_kernel):
    shared_kernel.run("from distdl_jupyter import submit\ndef start(what):\n    return submit(what, name='x')")
    assert "hunter2" not in shared_kernel.run("start('https://me:hunter2@example.com')").traceback
    ran = shared_kernel.run("start(1)")
    first, second, last = ran.traceback.splitlines()
    assert re.fullmatch(r"Cell In\[\d+\], line 1: start\(1\)", first)
    assert re.fullmatch(r"Cell In\[\d+\], line 3: return submit\(what, name='x'\)", second)
    assert last == "InvalidSpec: 1 is not a function. Pass the function itself, not its result."


def test_a_syntax_error_shows_its_place(shared_kernel):
    traceback = shared_kernel.run("%%distributed\n\nx = (1,\n").traceback
    assert 'File "<cell' in traceback
    assert "line 3" in traceback
    assert "^" in traceback


def test_variables_in_the_magic_line_but_not_in_the_cell(kernel):
    kernel.ok("n = 2\nrun = 'a b'")
    kernel.ok("%%distributed -p {n} -b torch --name '{run}-{n}' --no-panel --wait\nprint('$n {n}')")
    job = jobs()[0]
    assert (job.spec.process_count, job.name) == (2, "a b-2")
    assert {str(line) for line in job.logs(0)} == {"$n {n}"}


def test_the_alias_does_the_same(kernel):
    assert kernel.ok("%%distdl --wait --no-panel\n6 * 7").value == {"text/plain": "42"}
    assert jobs()[0].spec.source.command == "%%distdl --wait --no-panel"


def test_another_extension_keeps_its_magic(plain_kernel):
    plain_kernel.ok(
        "from IPython.core.magic import register_cell_magic\n"
        "@register_cell_magic\ndef distributed(line, cell):\n    return 'theirs'\n"
        "distributed.__module__ = 'nbdistributed.magics'"
    )
    ran = plain_kernel.ok("%load_ext distdl_jupyter")
    assert ran.text.startswith("%%distributed is already defined by nbdistributed. Use %%distdl instead")
    assert plain_kernel.ok("%%distributed\n1").value == {"text/plain": "'theirs'"}
    assert plain_kernel.ok("%%distdl --wait --no-panel\n5").value == {"text/plain": "5"}
    assert plain_kernel.ok("%reload_ext distdl_jupyter").text == ran.text


def test_loading_twice_is_quiet_and_loads_no_framework(plain_kernel):
    assert plain_kernel.ok("%load_ext distdl_jupyter\n%reload_ext distdl_jupyter").text == ""
    heavy = "[m for m in ('torch', 'plotly', 'pandas', 'horovod', 'ipywidgets') if m in sys.modules]"
    assert plain_kernel.ok(f"import sys\n{heavy}").value == {"text/plain": "[]"}


def test_a_value_set_on_a_module_stays_in_the_notebook_with_both_forms_of_import(kernel, notebooks):
    (notebooks / "mymod.py").write_text("VALUE = 2\nlam = lambda: VALUE\ndef fn(): return VALUE\n")
    kernel.ok("import importlib, mymod\nfrom mymod import fn, lam\nimportlib.reload(mymod)\nmymod.VALUE = 77")
    ran = kernel.ok("%%distributed -p 2 -b torch --wait --no-panel -o job\nmymod.fn(), fn(), lam(), mymod.VALUE")
    assert ran.value == {"text/plain": "(2, 2, 2, 2)"}
    assert "Warning: mymod.VALUE differs from mymod.py" in ran.text
    assert "module-attribute-changed" in {finding["code"] for finding in jobs()[0].spec.findings}
    inside = kernel.ok("%%distributed -p 2 -b torch --wait --no-panel\nmymod.VALUE = 77\nmymod.fn(), fn(), lam()")
    assert inside.value == {"text/plain": "(77, 77, 77)"}
    assert "differs" not in inside.text


@pytest.mark.parametrize(
    ("flags", "body", "code", "command"),
    [
        ("-b torch", "batches()", "undefined-name", r"--allow-undefined\."),
        ("-b torch", "batches(), model", "undefined-name", r"--allow-undefined\."),
        ("-p 2000 -b torch", "1", "too-many-local-processes", r"--oversubscribe\."),
        ("-b torch --compute-target nowhere", "1", "cluster-unknown", r"add_cluster\('nowhere', \.\.\.\)"),
        ("-p 2 -b mpx", "1", "backend-unknown", r"torch, torch-gloo, torch-nccl\."),
        ("-p 2 -b plain", "1", "backend-one-process", "--distributed-backend torch"),
        ("-p 2000 -b torch --use-gpu", "1", "too-few-gpus", "--no-use-gpu"),
        ("-b torch --gpus 900", "1", "too-few-gpus", "--no-use-gpu"),
        ("-p 2 -b torch --cores 4000", "1", "too-few-resources", r"--cores \d+"),
        ("-p 2 -b torch --memory 90TB", "1", "too-few-resources", r"--memory \d+MB"),
        ("--proceses 2", "1", "flag-stray", r"--process-count-per-node\?.*"),
        ("-p two", "1", "flag-invalid", r"%%distributed\?"),
    ],
)
def test_errors_of_the_first_cell_end_with_what_to_type(shared_kernel, flags, body, code, command):
    if "900" in flags or "2000 -b torch --use-gpu" in flags:
        flags += " --oversubscribe"
    ran = shared_kernel.run(f"%%distributed {flags}\n{body}")
    assert shared_kernel.ok("import sys; sys.last_value.code").value == {"text/plain": repr(code)}
    assert re.search(rf"{command}$", ran.traceback.splitlines()[-1])
    assert ran.traceback.count("Define it before using it") <= 1
    assert jobs() == []


@pytest.mark.parametrize(
    ("backend", "missing", "command"),
    [
        ("torch", "torch", "pip install 'distdl-jupyter[torch]'"),
        ("horovod-gloo", "horovod", "distdl install horovod"),
        ("deepspeed", "deepspeed", "pip install 'distdl-jupyter[deepspeed]'"),
        ("tensorflow", "tensorflow", "pip install 'distdl-jupyter[tensorflow]'"),
        ("ray", "ray", "pip install 'distdl-jupyter[ray]'"),
    ],
)
def test_a_missing_backend_names_the_command_that_installs_it(kernel, tmp_path, backend, missing, command):
    """In an environment that has all packages but this one."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    for entry in Path(pytest.__file__).parents[1].iterdir():
        if entry.name.partition("-")[0] != missing:
            (packages / entry.name).symlink_to(entry)
    kernel.ok(f"import sys\nsys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(packages)!r}]")
    ran = kernel.run(f"%%distributed -p 2 -b {backend}\n1")
    assert ran.error.startswith("PluginUnavailable")
    assert ran.traceback.splitlines()[-1].endswith(f"Run: {command}")
    assert jobs() == []
