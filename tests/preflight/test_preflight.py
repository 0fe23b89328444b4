"""Findings about code before it starts, with and without each mistake."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from distdl_jupyter import preflight
from distdl_jupyter.backends.base import TENSORFLOW, TORCH, check_cuda
from distdl_jupyter.backends.horovod import check_build, check_keras, list_frameworks
from distdl_jupyter.backends.tensorflow import check_keras_fit
from distdl_jupyter.backends.torch import check_nccl
from distdl_jupyter.capture import capture_cell, capture_function, capture_script
from distdl_jupyter.core.spec import JobSpec

GOOD_HOROVOD = """
import horovod.torch as hvd, torch
hvd.init()
model = torch.nn.Linear(2, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
x = torch.ones(8, 2)[hvd.rank()::hvd.size()]
model(x).sum().backward()
optimizer.step()
if hvd.rank() == 0:
    torch.save(model.state_dict(), "model.pt")
"""
GOOD_TORCH = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group()
model = DDP(torch.nn.Linear(2, 2))
sampler = torch.utils.data.DistributedSampler([1, 2])
loader = torch.utils.data.DataLoader([1, 2], sampler=sampler, batch_size=32)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        model(batch).sum().backward()
"""
ELASTIC = """
import horovod.torch as hvd, torch
hvd.init()
model = torch.nn.Linear(2, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
@hvd.elastic.run
def train(state):
    model(torch.ones(8, 2)).sum().backward()
    optimizer.step()
    state.commit()
train(hvd.elastic.TorchState(model, optimizer))
"""
STRATEGY = "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()"


def asked(backend="horovod-gloo", processes=4):
    return JobSpec(id="", name="", distributed_backend=backend, process_count_per_node=processes)


def found(code, backend="horovod-gloo", processes=4, namespace=None):
    draft = capture_cell(code, namespace or {}, execution_count=7, first_line=1)
    return {finding.code: finding for finding in preflight.check(draft, asked(backend, processes))}


def problems(*args, **kwargs):
    return {code: finding for code, finding in found(*args, **kwargs).items() if finding.level != "info"}


@pytest.mark.parametrize(("code", "backend"), [(GOOD_HOROVOD, "horovod-gloo"), (GOOD_TORCH, "torch")])
def test_good_code_passes_all_checks(code, backend):
    draft = capture_cell(code, {}, execution_count=7)
    report = preflight.report(draft, asked(backend))
    assert [finding for finding in report.findings if finding.level != "info"] == []
    assert report.format_summary() == "All 6 checks passed"
    assert all(check.result and check.passed for check in report.checks)


def test_the_quickstart_passes_all_checks():
    cells = json.loads((Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb").read_text())["cells"]
    cell = next("".join(c["source"]) for c in cells if "".join(c["source"]).startswith("%%distributed"))
    arrays = {name: np.zeros(3) for name in ("train_images", "train_labels", "test_images", "test_labels")}
    draft = capture_cell(cell.partition("\n")[2], {**arrays, "DigitsCNN": object})
    report = preflight.report(draft, asked("horovod-gloo", 2))
    assert report.format_summary() == "All 6 checks passed"
    assert [f.text for f in report.findings] == ["Each step uses 32 × 2 = 64 samples."]


@pytest.mark.parametrize(
    ("code", "backend", "words", "remedy"),
    [
        ("x = 1", "horovod-gloo", "never initializes Horovod, so its 4 processes", "`import horovod.torch as hvd`"),
        ("import tensorflow as tf", "horovod", "never initializes Horovod", "`import horovod.tensorflow as hvd`"),
        ("import torch", "mpi", "never initializes Horovod", "`hvd.init()`"),
        ("x = 1", "torch", "never initializes torch.distributed", "`dist.init_process_group()`"),
        ("x = 1", "tensorflow", "never initializes tf.distribute", "tf.distribute.MultiWorkerMirroredStrategy()`"),
    ],
)  # fmt: skip
def test_a_cell_that_never_initialises_the_backend_is_told_how(code, backend, words, remedy):
    finding = problems(code, backend)["backend-not-initialised"]
    assert finding.level == "warning"
    assert words in finding.text
    assert remedy in finding.remedy


def test_code_for_the_other_backend_is_an_error():
    finding = problems("import horovod.torch as hvd\nhvd.init()", "torch")["other-backend"]
    assert (finding.level, finding.remedy) == ("error", "Choose distributed_backend='horovod-gloo'.")
    assert "line 2 of Cell [7]" in finding.text
    finding = problems("from torch.distributed import init_process_group as go\ngo()", "horovod-mpi")["other-backend"]
    assert (finding.level, finding.remedy) == ("error", "Choose distributed_backend='torch'.")


def test_tensorflow_and_another_backend_are_told_apart():
    finding = problems("import horovod.tensorflow as hvd\nhvd.init()", "tensorflow")["other-backend"]
    assert (finding.level, finding.remedy) == ("error", "Choose distributed_backend='horovod-gloo'.")
    finding = problems(STRATEGY, "torch")["other-backend"]
    assert (finding.level, finding.remedy) == ("error", "Choose distributed_backend='tensorflow'.")
    assert problems(STRATEGY, "tensorflow") == {}
    assert problems("import ray\nray.init()", "ray") == {}


def test_fit_of_keras_3_is_warned_of_where_the_strategy_does_not_know_it():
    fits = f"{STRATEGY}\nmodel = make()\nmodel.fit(data)"
    draft = capture_cell(fits, {"make": int, "data": 1})
    check = check_keras_fit(draft.analysis, asked("tensorflow"), environment={})
    assert check is not None
    assert [(f.level, f.code) for f in check.findings] == [("warning", "keras-3-fit")]
    assert "pip install tf-keras" in check.findings[0].remedy
    assert check_keras_fit(draft.analysis, asked("tensorflow"), environment={"TF_USE_LEGACY_KERAS": "1"}).passed
    assert check_keras_fit(draft.analysis, asked("tensorflow", processes=1), environment={}) is None
    legacy = capture_cell(f'import os\nos.environ["TF_USE_LEGACY_KERAS"] = "1"\n{fits}', {"make": int, "data": 1})
    assert check_keras_fit(legacy.analysis, asked("tensorflow"), environment={}).passed
    plain = capture_cell(STRATEGY, {})
    assert check_keras_fit(plain.analysis, asked("tensorflow"), environment={}) is None


def test_code_that_knows_both_backends_fits_both():
    code = "if mpi:\n    import horovod.torch as hvd\n    hvd.init()\nelse:\n    import torch.distributed as dist\n"
    code += "    dist.init_process_group()"
    for backend in ("horovod-gloo", "torch"):
        assert problems(code, backend, namespace={"mpi": True}) == {}


@pytest.mark.parametrize("library", ["lightning", "pytorch_lightning", "accelerate", "transformers", "deepspeed"])
def test_libraries_that_start_the_backend_themselves(library):
    assert problems(f"import {library}\nloss.backward()", "torch", namespace={"loss": 1}) == {}
    assert "backend-not-initialised" in problems(f"import {library}", "horovod-gloo")


@pytest.mark.parametrize("backend", ["plain", "torch", "horovod-gloo"])
def test_one_process_needs_nothing(backend):
    assert problems("import torch\nloss.backward()\ntorch.save(1, 'x.pt')", backend, 1, {"loss": 1}) == {}


def test_names_in_the_notebook_say_what_they_are():
    import horovod.torch as hvd
    from torch.distributed import init_process_group

    assert "other-backend" in problems("h.init()", "torch", namespace={"h": hvd})
    assert problems("meet()", "torch", namespace={"meet": init_process_group}) == {}


def initialises():
    import torch.distributed as dist

    dist.init_process_group()


def test_captured_functions_and_modules_beside_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(initialises, "__module__", "__main__")
    assert problems("initialises()", "torch", namespace={"initialises": initialises}) == {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("meeting.py").write_text("import torch.distributed as dist\ndef go(): dist.init_process_group()\n")
    assert problems("import meeting\nmeeting.go()", "torch") == {}
    assert "backend-not-initialised" in problems("import nothing_here", "torch")


def test_a_script_is_read(tmp_path):
    (tmp_path / "train.py").write_text(GOOD_TORCH)
    report = preflight.report(capture_script("train.py", tmp_path), asked("torch"))
    assert report.format_summary() == "All 6 checks passed"
    (tmp_path / "train.py").write_text("print(1)")
    findings = preflight.check(capture_script("train.py", tmp_path, {"--api-token": "x"}), asked("torch"))
    assert [f.code for f in findings] == ["secret-argument", "backend-not-initialised"]
    assert findings[1].text.startswith("The script never")


def test_code_that_cannot_be_read_is_not_judged():
    report = preflight.report(capture_function(np.sum, ([1],)), asked("torch"))
    assert "not available" in {check.name: check.result for check in report.checks}["Backend"]
    assert report.format_summary() == "All 6 checks passed"


def test_gradients_that_nobody_averages():
    finding = problems("hvd.init()\nloss.backward()", namespace={"loss": 1, "hvd": 1})["gradients-not-averaged"]
    assert finding.text.startswith("Line 2 of Cell [7] computes gradients")
    assert "hvd.DistributedOptimizer" in finding.remedy
    code = "import torch.distributed as dist\ndist.init_process_group()\nloss.backward()"
    assert "DistributedDataParallel" in problems(code, "torch", namespace={"loss": 1})["gradients-not-averaged"].remedy
    assert problems(f"{code}\ndist.all_reduce(loss)", "torch", namespace={"loss": 1}) == {}


def test_ranks_that_start_from_different_weights():
    code = GOOD_HOROVOD.replace("hvd.broadcast_parameters(model.state_dict(), root_rank=0)", "")
    assert "broadcast_parameters" in problems(code)["no-common-start"].remedy
    assert problems(code.replace("hvd.init()", "hvd.init()\ntorch.manual_seed(0)")) == {}


def test_data_that_every_rank_reads_whole():
    loader = "import torch.distributed as dist\ndist.init_process_group()\nfrom torch.utils.data import DataLoader\n"
    undivided = problems(f"{loader}DataLoader([1], batch_size=4, shuffle=True)", "torch")["data-not-divided"]
    assert "line 4 of Cell [7]" in undivided.text
    assert problems(f"{loader}DataLoader([1, 2][dist.get_rank()::2])", "torch") == {}
    assert found(f"{loader}DataLoader([1], batch_size=4)", "torch")["global-batch"].text.endswith("= 16 samples.")


def test_a_sampler_that_never_hears_of_epochs():
    assert found(GOOD_TORCH.replace("sampler.set_epoch(epoch)", "pass"), "torch")["no-set-epoch"].level == "info"
    fixed = GOOD_TORCH.replace("sampler.set_epoch(epoch)", "pass").replace(
        "Sampler([1, 2])", "Sampler([1, 2], shuffle=False)"
    )
    assert "no-set-epoch" not in found(fixed, "torch")


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("torch.save(model, 'model.pt')", "'model.pt'"),
        ("torch.save(model, f=f'model-{epoch}.pt')", "f'model-{epoch}.pt'"),
        ("np.save(out / 'a.npy', x)", "out / 'a.npy'"),
        ("frame.to_csv('a.csv')", "'a.csv'"),
        ("with open('log.txt', 'a') as f: pass", "'log.txt'"),
        ("with Path('log.txt').open('w') as f: pass", "Path('log.txt')"),
        ("Path('x.txt').write_text('a')", "Path('x.txt')"),
        ("path = 'm.pt'\ntorch.save(model, path)", "'m.pt'"),
        ("def save():\n    torch.save(model, 'm.pt')\nsave()", "'m.pt'"),
        ("for epoch in range(2):\n    plt.savefig('a.png')", "'a.png'"),
        ("from joblib import dump\ndump(model, 'm.joblib')", "'m.joblib'"),
    ],
)
def test_files_that_every_rank_writes(line, path):
    names = dict.fromkeys(("torch", "model", "np", "x", "out", "frame", "Path", "plt", "epoch", "Sampler"), 1)
    code = f"import horovod.torch as hvd\nhvd.init()\n{line}"
    assert f"would write {path} in line" in problems(code, namespace=names)["shared-file"].text


@pytest.mark.parametrize(
    "line",
    [
        "if hvd.rank() == 0:\n    torch.save(model, 'model.pt')",
        "if hvd.rank() == 0 and epoch > 3:\n    torch.save(model, 'model.pt')",
        "if is_main_process:\n    with open('a', 'w') as f: pass",
        "torch.save(model, f'model-{hvd.rank()}.pt')",
        "path = f'model-{rank}.pt'\ntorch.save(model, path)",
        "torch.save(model, buffer)",
        "open('data.txt').read()\nopen('data.txt', 'rb')",
        "def save():\n    if rank != 0:\n        return\n    torch.save(model, 'm.pt')\nsave()",
        "def save():\n    torch.save(model, 'm.pt')\nif hvd.rank() == 0:\n    save()",
        "hvd.rank() == 0 and print('x')\nopen('/dev/null', 'w')",
        "x = save(model, 'm.pt') if rank == 0 else None",
        "import os\nr = int(os.environ['RANK'])\nif r == 0 and epoch > 3:\n    torch.save(model, 'm.pt')",
        "me = hvd.rank()\ntorch.save(model, f'm-{me}.pt')",
        "first = hvd.rank() == 0\nif first:\n    torch.save(model, 'm.pt')",
    ],
)
def test_writes_that_are_fine(line):
    names = dict.fromkeys(("torch", "model", "epoch", "rank", "is_main_process", "buffer", "save"), 1)
    assert problems(f"import horovod.torch as hvd\nhvd.init()\n{line}", namespace=names) == {}


def test_names_that_nothing_defines():
    draft = capture_cell("batch = 1\nbatches()\nif batch:\n    other", {}, first_line=2)
    findings = preflight.check(draft, asked("plain", 1))
    assert [(one.code, one.level, one.text) for one in findings] == [
        (
            "undefined-name",
            "error",
            "batches is not defined in the cell or the notebook (line 3). Did you mean batch?",
        ),
        ("undefined-name", "warning", "other is not defined in the cell or the notebook (line 5)."),
    ]
    assert findings[0].remedy.endswith("--allow-undefined.")
    allowed = preflight.check(draft, dataclasses.replace(asked("plain", 1), allow_undefined=True))
    assert [one.level for one in allowed] == ["warning", "warning"]


def test_large_and_secret_values():
    big = np.zeros(13_000_000)
    finding = problems("big.sum()", "plain", 1, {"big": big})["large-value"]
    assert "big (ndarray 13000000) is 104 MB" in finding.text
    assert problems("small.sum()", "plain", 1, {"small": big[:10].copy()}) == {}
    secret = problems("token", "plain", 1, {"token": "sk-secret"})["secret-value"]
    assert "sk-secret" not in secret.text + secret.remedy
    assert "os.environ" in secret.remedy
    assert problems("tokens", "plain", 1, {"tokens": [1, 2]}) == {}


def test_files_of_a_package_that_stay_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("lib").mkdir()
    Path("lib/__init__.py").touch()
    for name in "abcd":
        Path(f"lib/{name}.bin").write_bytes(bytes(1_000_001))
    finding = found("import lib", "plain", 1)["left-out-file"]
    assert (finding.level, finding.text) == (
        "info",
        "lib/ is sent without its large files a.bin, b.bin and c.bin and 1 more.",
    )


def test_keras_3_under_horovods_wrappers_is_refused():
    draft = capture_cell("import horovod.keras as hvd\nhvd.init()\nhvd.DistributedOptimizer(1)", {})
    check = check_keras(draft.analysis, asked(), environment={})
    assert check is not None
    assert [f.level for f in check.findings] == ["error"], "keras 3 is installed with the tests"
    assert check_keras(draft.analysis, asked(), environment={"TF_USE_LEGACY_KERAS": "1"}).passed
    given = dataclasses.replace(asked(), environment_variables={"TF_USE_LEGACY_KERAS": "1"})
    assert check_keras(draft.analysis, given, environment={}).passed, "the ranks have what is given to the job"
    assert check.findings[0].remedy == (
        'Change "import horovod.keras as hvd" to "import distdl_jupyter.compat.horovod.keras as hvd", which averages '
        "them."
    )
    assert check_keras(draft.analysis, asked(processes=1)) is None
    mended = "import distdl_jupyter.compat.horovod.keras as hvd\nhvd.init()\nhvd.DistributedOptimizer(1)"
    changed = capture_cell(mended, {})
    assert [one for one in preflight.report(changed, asked()).checks if not one.passed] == []
    assert "Keras" not in {one.name for one in preflight.report(draft, asked("torch")).checks}
    plain = capture_cell("import horovod.torch as hvd\nhvd.init()", {})
    assert check_keras(plain.analysis, asked()) is None


def test_horovod_without_tensorflow_is_told_before_the_start():
    draft = capture_cell("x = 1\nimport horovod.tensorflow as hvd\nhvd.init()", {})
    check = check_build(draft.analysis, asked(), list_frameworks())
    assert [(one.level, one.text) for one in check.findings] == [
        (
            "error",
            "This Horovod was built without TensorFlow, so hvd.init() in line 4 of Cell fails on every rank.",
        )
    ], "as `distdl install horovod` builds it"
    assert check_build(draft.analysis, asked(), (TORCH, TENSORFLOW)).passed
    with_torch = capture_cell("import horovod.torch as hvd\nhvd.init()", {})
    assert check_build(with_torch.analysis, asked(), list_frameworks()) is None


def test_a_report_counts_and_orders():
    draft = capture_cell("import horovod.torch as hvd\nhvd.init()\nmissing", {})
    report = preflight.report(draft, asked("torch"))
    assert report.format_summary() == "4 of 6 checks passed, 2 errors"
    draft = capture_cell("if len('a'):\n    perhaps\nimport torch", {})
    report = preflight.report(draft, asked("torch"))
    assert report.format_summary() == "4 of 6 checks passed, 2 warnings"
    assert {check.name for check in report.checks} == {
        "Names", "Captured values", "Backend", "Gradients", "Data", "Files",
    }  # fmt: skip


def test_elastic_code_runs_as_an_ordinary_job():
    assert found(ELASTIC)["not-elastic-job"].level == "info"
    assert "not-elastic-job" not in found(GOOD_HOROVOD)


USES_CUDA = (
    "x = torch.ones(3).cuda()",
    "x = torch.ones(3).to('cuda')",
    "device = torch.device('cuda:1')",
    "x = torch.ones(3, device='cuda')",
    "torch.cuda.set_device(0)",
    "def train():\n    return torch.ones(3).cuda()\ntrain()",
)
NEEDS_NO_GPU = (
    "torch.ones(3).cpu()",
    "print('cuda')",
    "torch.cuda.manual_seed(1)",
    "device = 'cuda' if torch.cuda.is_available() else 'cpu'\ntorch.ones(3).to(device)",
    "if torch.cuda.device_count():\n    torch.ones(3).cuda()",
)


@pytest.mark.fault("payload", "code that uses CUDA without a GPU: the line and a fix are reported before the start")
@pytest.mark.parametrize("line", USES_CUDA)
def test_cuda_without_a_gpu(line):
    code = capture_cell(f"import torch\n{line}", {}, execution_count=7, first_line=1).analysis
    (finding,) = check_cuda(code, asked(), devices=()).findings
    assert (finding.level, finding.code) == ("warning", "no-gpu")
    assert "of Cell [7] needs a GPU, but this machine has none" in finding.text
    assert "is_available()" in finding.remedy
    assert check_cuda(code, asked(), devices=(0,)).findings == ()
    elsewhere = JobSpec(id="", name="", compute_target="lab", cluster="ssh")
    assert check_cuda(code, elsewhere, devices=()) is None


@pytest.mark.parametrize("line", NEEDS_NO_GPU)
def test_code_that_needs_no_gpu(line):
    code = capture_cell(f"import torch\n{line}", {}, execution_count=7, first_line=1).analysis
    assert check_cuda(code, asked(), devices=()) is None


NCCL_ALONE = "dist.init_process_group('nccl')"
NCCL_OR_GLOO = "dist.init_process_group(backend='nccl' if x else 'gloo')"
NCCL_IF_CUDA = (
    "if torch.cuda.is_available():\n    dist.init_process_group('nccl')\nelse:\n    dist.init_process_group('gloo')"
)


@pytest.mark.fault("payload", "NCCL with fewer GPUs than processes is refused before the start, with the remedy")
@pytest.mark.parametrize(
    ("line", "devices", "level", "remedy"),
    [
        (NCCL_ALONE, (0,), "error", "Use -p 1, or Gloo"),
        (NCCL_ALONE, (), "error", "Use Gloo"),
        (NCCL_ALONE.replace("(", "(backend="), (0,), "error", "Use -p 1, or Gloo"),
        (NCCL_IF_CUDA, (0,), "warning", "Use -p 1, or Gloo"),
    ],
)
def test_nccl_with_fewer_gpus_than_processes(line, devices, level, remedy):
    code = capture_cell(f"import torch\nimport torch.distributed as dist\n{line}", {}, execution_count=7).analysis
    (finding,) = check_nccl(code, asked(processes=2), devices=devices, environment={}).findings
    assert (finding.level, finding.code) == (level, "nccl-call-needs-gpus")
    assert "of Cell [7] needs 2 GPUs for 2 processes, but this machine has " in finding.text
    assert finding.remedy == f'{remedy}: init_process_group("gloo").'
    assert check_nccl(code, asked(processes=2), devices=(0, 1), environment={}).findings == ()
    assert check_nccl(code, asked(processes=2), devices, {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}) is None


@pytest.mark.parametrize(
    ("line", "devices"),
    [(NCCL_IF_CUDA, ()), (NCCL_OR_GLOO, ()), (NCCL_OR_GLOO, (0,)), ("dist.init_process_group('gloo')", (0,))],
)
def test_code_that_may_use_another_transport_than_nccl(line, devices):
    code = capture_cell(f"import torch\nimport torch.distributed as dist\nx = 1\n{line}", {}).analysis
    assert check_nccl(code, asked(processes=2), devices=devices, environment={}) is None


def test_a_process_group_without_a_backend_that_makes_one():
    code = "import torch.distributed as dist\ndist.init_process_group({})"
    alone = problems(code.format(""), "plain", 1)["torch-alone"]
    assert alone.level == "warning"
    assert "Line 2 of Cell [7] calls init_process_group()" in alone.text
    assert problems(code.format("init_method='tcp://127.0.0.1:1234', rank=0, world_size=1"), "plain", 1) == {}
    assert problems(code.format(""), "torch", 1) == {}


def test_of_a_package_that_travels_the_modules_are_read_that_the_code_imports(tmp_path, monkeypatch):
    package = tmp_path / "package_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("from .beginning import BEGUN\n")
    (package / "beginning.py").write_text("BEGUN = open('begun.txt', 'w')\n")
    (package / "used.py").write_text("from . import deep\nfrom .deeper import save\n")
    (package / "deep.py").write_text("import torch\nSTATE = torch.zeros(3).cuda()\n")
    (package / "deeper.py").write_text("def save(model):\n    open('model.txt', 'w').write(model)\n")
    (package / "unused.py").write_text("import accelerate\nopen('other.txt', 'w').write('x')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code = capture_cell(
        "from package_of_mine import used\nused.save('x')", {}, execution_count=7, first_line=1
    ).analysis
    assert (
        "torch.zeros(3).cuda() in line 2 of package_of_mine/deep.py" in check_cuda(code, asked(), ()).findings[0].text
    )
    read_there = {call.label for call in code.calls if call.name == "open"}
    assert read_there == {"package_of_mine/beginning.py", "package_of_mine/deeper.py"}
    assert "accelerate" not in code.imports


@pytest.mark.parametrize(
    "code",
    [
        "import ignite.distributed as idist\n\ndef train(rank):\n    loss.backward()\n\n"
        "with idist.Parallel(backend='gloo') as parallel:\n    parallel.run(train)",
        "from timm import utils\ndevice = utils.init_distributed_device(args)\nloss.backward()",
        "from mylib import setup_ddp\nmodel = setup_ddp(model)\nloss.backward()",
    ],
)
def test_helpers_of_other_libraries_may_initialise_and_average(code):
    found = problems(code, "torch")
    assert not {"backend-not-initialised", "gradients-not-averaged"} & set(found)


def test_a_helper_that_was_read_and_does_nothing_is_no_help():
    code = "def setup_distributed():\n    print('hello')\n\nsetup_distributed()\nloss.backward()"
    assert {"backend-not-initialised", "gradients-not-averaged"} <= set(problems(code, "torch"))


@pytest.mark.parametrize(
    "test", ["utils.is_primary(args)", "is_main()", "helper.leads() and best", "not skips()", "epoch > 3 and chief()"]
)
def test_a_write_below_an_unknown_test_gets_no_warning(test):
    code = f"import torch\nif {test}:\n    torch.save(model, 'model.pt')"
    assert "shared-file" not in problems(code, "torch")


@pytest.mark.parametrize("test", ["loss.item() < best", "len(losses) > 3", "os.path.exists('model.pt')"])
def test_a_write_below_a_test_that_is_the_same_on_all_ranks_is_found(test):
    code = f"import os, torch\nif {test}:\n    torch.save(model, 'model.pt')"
    assert "shared-file" in problems(code, "torch")


def test_a_cell_that_only_defines_a_function_says_that_it_is_never_called():
    code = "import torch\nEPOCHS = 3\n\ndef train():\n    torch.ones(1)\n"
    assert "train()" in problems(code)["never-called"].text
    for more in ("train()", "print(1)", "value = train()", "if __name__ == '__main__':\n    train()"):
        assert "never-called" not in problems(code + more)
    assert "never-called" not in problems("import torch\nEPOCHS = 3")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("class Trainer:\n    def fit(self): pass", "defines Trainer but never uses it"),
        ("def train(): pass\nif __name__ == 'main':\n    train()", "__name__ == 'main'"),
        ("def train(): pass\nif '__mp_main__' == __name__:\n    train()", "__mp_main__"),
        ("def train(): pass\nif __name__ != '__main__':\n    train()", "__name__ != '__main__'"),
    ],
)
def test_a_class_alone_and_a_test_of_the_name_that_is_never_true_run_nothing(code, text):
    assert text in problems(code)["never-called"].text
    assert "never-called" not in problems(f"{code}\nprint(1)")
    assert "never-called" not in problems("def train(): pass\nif __name__ != 'x':\n    train()")


@pytest.mark.parametrize(
    "code",
    [
        "import torch.multiprocessing as mp\nmp.spawn(worker, nprocs=2)",
        "from torch.multiprocessing import spawn\nspawn(worker, nprocs=2)",
        "import torch\ntorch.multiprocessing.start_processes(worker, nprocs=2)",
        "from accelerate import notebook_launcher\nnotebook_launcher(worker, num_processes=2)",
        "import horovod\nhorovod.run(worker, np=2)",
        "import multiprocessing as mp, torch\ndef worker(): torch.distributed.init_process_group()\n"
        "mp.Process(target=worker).start()",
        "import multiprocessing as mp, torch\nctx = mp.get_context('spawn')\n"
        "def worker(): torch.distributed.init_process_group()\nctx.Process(target=worker).start()",
    ],
)
def test_code_that_starts_its_own_processes_is_told_before_the_start(code):
    remedy = problems(code, "torch", 2)["own-processes"].remedy
    assert "-p 1" in remedy
    assert "worker(rank, size)" in remedy
    assert "own-processes" not in problems(code, "torch", 1)


def test_processes_that_do_not_train_together_are_left_alone():
    code = "import multiprocessing as mp\ndef load(): pass\nmp.Process(target=load).start()"
    assert "own-processes" not in problems(code, "torch", 2)


CHANGES = {
    "value = 2": ("mod.value = 77", True),
    "value: int = 2": ("mod.value = 77", True),
    "value = None": ("import numpy; mod.value = numpy.zeros(2)", True),
    "value = (1, 2)\nother = 3": ("mod.value = 5; mod.other = 4", True),
    # Nothing differs, or the module or the code sets it itself.
    "value = 2 ": ("mod.value = 2", False),
    "value = 1": ("mod.value = True", False),
    "value = 2\ndef f():\n    value = 3": ("pass", False),
    "value = 2\nvalue = 3": ("pass", False),
    "value = 2\nif len('a'): value = 3": ("pass", False),
    "value = 2\nfor value in range(3): pass": ("pass", False),
    "value = None\ndef f():\n    global value\n    value = 3": ("mod.f()", False),
    "value = {'a': 0}": ("mod.value['a'] = 1", False),
    "pi = 3\nfrom math import *": ("pass", False),
    "value = len('ab')": ("mod.value = 77", False),
    "value = 2\ndef f(): return value": ("del mod.value", False),
}


@pytest.mark.parametrize("text", CHANGES)
def test_attributes_of_modules_that_differ_from_their_file(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("mod.py").write_text(text)
    monkeypatch.delitem(sys.modules, "mod", raising=False)
    mod = importlib.import_module("mod")
    change, differs = CHANGES[text]
    exec(change, {"mod": mod})
    finding = found("mod", "plain", 1, {"mod": mod}).get("module-attribute-changed")
    assert (finding is not None) == differs
    if finding is not None:
        assert "mod.value" in finding.text
        assert ("mod.other" in finding.text) == ("other" in text)
        assert (finding.level, "mod.py" in finding.text, "cell" in finding.remedy) == ("warning", True, True)
    assert "module-attribute-changed" not in found("mod.value = mod.other = 5\nmod", "plain", 1, {"mod": mod}), (
        "the cell sets it"
    )
