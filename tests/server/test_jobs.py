"""Real jobs over HTTP: submitted, listed, shown, cancelled, run again, deleted."""

import json
import os
import sys

import pytest

from distdl_jupyter.core.store import JobStore
from tests.conftest import until_gone, wait_for
from tests.docs.blocks import ROOT
from tests.processes import executable
from tests.widgets import recorded

pytestmark = pytest.mark.timeout(600)

TRAIN = """
import os, torch
import horovod.torch as hvd
from distdl_jupyter import log
hvd.init()
for step in range(5):
    log(step=step, loss=float(hvd.allreduce(torch.tensor(1.0 / (1 + step + hvd.rank())))))
print("rank", hvd.rank(), "of", hvd.size(), "in", os.path.basename(os.getcwd()))
hvd.size() * 10 + hvd.rank()
"""
WAIT = "import time\nprint('waiting', flush=True)\ntime.sleep(600)"


def test_horovod_trains_from_source_text_and_everything_is_told(server):
    options = {"process_count_per_node": 2, "distributed_backend": "horovod"}
    row = server.post("/jobs", {"code": TRAIN, "options": {**options, "name": "digits"}})
    assert row["state"] in ("queued", "preparing", "starting", "running", "completed")
    assert (row["name"], row["backend"], row["process_count_per_node"]) == ("digits", "horovod-gloo", 2)
    assert server.until_ended(row["id"]) == {"state": "completed", "ok": True, "values": ["20", "21"], "failure": None}

    detail = server.get(f"/jobs/{row['id']}")
    assert detail["source"]["code"].strip() == TRAIN.strip()
    assert detail["card"]["state"] == "completed"
    assert detail["card"]["lines"] >= 2
    assert [rank["status"] for rank in detail["ranks"]] == ["ended", "ended"]
    assert {one["name"] for one in detail["metrics"]} == {"loss"}
    assert detail["metrics"][0]["count"] == 10
    assert {line["field"]: line["value"] for line in detail["spec"]}["distributed_backend"] == "horovod-gloo"
    text = server.ask("GET", f"/jobs/{row['id']}/log", params={"format": "text"}).text
    assert " [0] rank 0 of 2 in notebooks\n" in text
    assert " [1] rank 1 of 2 in notebooks\n" in text


def test_the_list_is_newest_first_with_states_and_pages(server):
    stories = [recorded.tell(kind, JobStore()) for kind in ("completed", "failed", "canceling")]
    try:
        everything = server.get("/jobs")
        assert [row["id"] for row in everything] == sorted((one.id for one in stories), reverse=True)
        assert [row["state"] for row in server.get("/jobs", state="failed")] == ["failed"]
        assert [row["state"] for row in server.get("/jobs", state="active")] == ["canceling"]
        assert server.get("/jobs", limit=1) == everything[:1]
        assert len(everything[-1]["spark"] or everything[0]["spark"]) >= 2
    finally:
        for one in stories:
            one.close()


def test_a_job_is_cancelled_then_deleted_and_nothing_is_left(server):
    id_ = server.submit(WAIT, options={"process_count_per_node": 2, "distributed_backend": "torch"})
    wait_for(lambda: "waiting" in server.ask("GET", f"/jobs/{id_}/log", params={"format": "text"}).text, what="output")
    assert server.get(f"/jobs/{id_}/result")["ok"] is None
    refused = server.delete(f"/jobs/{id_}", status=409)
    assert refused["type"] == "JobStillRunning"
    assert refused["hint"] == "Cancel it before removing it."
    server.post(f"/jobs/{id_}/cancel", {"now": True}, status=202)
    assert server.until_ended(id_)["state"] == "canceled"
    assert not until_gone(id_)
    assert server.post(f"/jobs/{id_}/cancel", status=409)["type"] == "JobNotRunning"
    server.delete(f"/jobs/{id_}")
    assert server.get("/jobs") == []
    assert server.get(f"/jobs/{id_}", status=404)["type"] == "JobNotFound"
    assert not (JobStore().jobs / id_).exists()


def test_a_job_works_in_its_notebooks_folder_and_takes_the_modules_beside_it(server, root):
    (root / "deep").mkdir()
    (root / "deep" / "shards.py").write_text("COUNT = 12\n")
    (root / "deep" / "train.ipynb").write_text("{}")
    id_ = server.submit("import os, shards\nshards.COUNT, os.path.basename(os.getcwd())", notebook="deep/train.ipynb")
    assert server.until_ended(id_)["values"] == ["(12, 'deep')"]
    detail = server.get(f"/jobs/{id_}")
    assert detail["source"]["notebook"] == str((root / "deep" / "train.ipynb").resolve())
    assert [name["name"] for name in detail["captured"]] == ["shards.py"]


@pytest.mark.parametrize(
    "path", ["../elsewhere.ipynb", "../../etc/passwd", "deep/none/train.ipynb", "train.txt", "a\0b.ipynb"]
)
def test_a_notebook_outside_the_servers_folder_is_refused(server, root, path):
    (root.parent / "elsewhere.ipynb").write_text("{}")
    refused = server.post("/jobs", {"code": "1", "notebook": path}, status=400)
    assert (refused["type"], refused["field"]) == ("InvalidSpec", "notebook")
    assert server.get("/jobs") == []


def test_a_secret_reaches_the_ranks_and_no_file(server, distdl_home):
    secret = "hf_0123456789secret"
    id_ = server.submit("import os\nlen(os.environ['HF_TOKEN'])",
                        options={"environment_variables": {"HF_TOKEN": secret}})  # fmt: skip
    assert server.until_ended(id_)["values"] == [str(len(secret))]
    for file in (distdl_home / "jobs" / id_).rglob("*"):
        assert not file.is_file() or secret not in file.read_text(errors="replace"), file
    assert secret not in json.dumps(server.get(f"/jobs/{id_}"))


def kernelspec(tmp_path, name, argv, language="python", env=None):
    folder = tmp_path / "jupyter-data" / "kernels" / name
    folder.mkdir(parents=True)
    spec = {"argv": argv, "display_name": name, "language": language, "env": env or {}}
    (folder / "kernel.json").write_text(json.dumps(spec))


def test_the_python_of_a_kernel_runs_the_job_with_that_kernels_variables(server, tmp_path):
    other = executable(tmp_path / "bin" / "python3-other", f'export CAME_BY=other\nexec {sys.executable} "$@"')
    argv = [str(other), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernelspec(tmp_path, "other", argv, env={"KERNEL_SAYS": "hello ${HOME}"})
    code = "import os\nos.environ['CAME_BY'], os.environ['KERNEL_SAYS']"
    id_ = server.submit(code, kernel_name="other")
    assert server.until_ended(id_)["values"] == [f"('other', 'hello {os.environ['HOME']}')"]


def test_a_kernel_without_this_package_is_refused_with_the_remedy(server, tmp_path):
    bare = executable(tmp_path / "bare" / "python3", f'exec {sys.executable} -I -S "$@"')
    kernelspec(tmp_path, "bare", [str(bare), "-f", "{connection_file}"])
    refused = server.post("/jobs", {"code": "1", "kernel_name": "bare"}, status=424)
    assert refused["message"] == f"{bare} does not have this version of distdl_jupyter."
    assert refused["hint"] == f"Run: {bare} -m pip install --upgrade {ROOT.as_uri()}", "a clone, as README installs it"


def test_a_kernel_that_is_not_there_or_no_python_is_refused(server, tmp_path):
    kernelspec(tmp_path, "julia", ["julia", "{connection_file}"], language="julia")
    for name in ("julia", "../julia"):
        refused = server.post("/jobs", {"code": "1", "kernel_name": name}, status=400)
        assert refused["field"] == "kernel_name"
        assert "is not a Python kernel on this machine" in refused["message"]


def test_a_python_that_dies_says_its_last_words(server, tmp_path):
    dying = executable(tmp_path / "python3.11", "echo out of memory >&2\nexit 3")
    kernelspec(tmp_path, "dying", [str(dying)])
    refused = server.post("/jobs", {"code": "1", "kernel_name": "dying"}, status=502)
    assert refused["message"] == f"{dying} failed.\nout of memory"


def test_jobs_run_on_when_the_server_stops(root, tmp_path):
    from tests.server.running import serve

    with serve(root) as server:
        go = str(tmp_path / "go")
        id_ = server.submit(f"import os, time\nwhile not os.path.exists({go!r}): time.sleep(0.05)\n'done'")
        server.until(id_, "running")
    (tmp_path / "go").touch()
    with serve(root) as server:
        assert server.until_ended(id_)["values"] == ["'done'"]
