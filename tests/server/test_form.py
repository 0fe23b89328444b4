"""The launch form over HTTP: prefilled from a cell's line, worked out by the Python that would run it."""

import contextlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from tests.conftest import wait_for
from tests.server.running import API, serve
from tests.server.test_jobs import kernelspec

CELL = (
    "%%distributed -p 2 -b horovod-gloo --name digits --timeout 90 --env A=1 --env MY_TOKEN -o run --no-panel\n"
    "import horovod.torch as hvd\nbatch_size = 8\ntrain(model, lr=0.1 * hvd.size())"
)


def test_it_begins_with_what_the_cells_own_line_says(server):
    form = server.post("/form", {"code": CELL, "notebook": "a/quickstart.ipynb"}, 200)
    chosen = form["values"]
    assert (chosen["process_count_per_node"], chosen["automatic"]) == (2, False)
    assert (chosen["distributed_backend"], chosen["name"]) == ("horovod-gloo", "digits")
    assert chosen["max_run_duration_seconds"] == 90.0
    assert form["environment"] == [
        {"name": "A", "value": "1", "secret": False},
        {"name": "MY_TOKEN", "value": None, "secret": True},
    ]
    assert form["global_batch"] == 16
    assert form["captured"] is None
    assert form["problems"] == {}
    line, _, body = form["cell"].partition("\n")
    assert line == (
        "%%distributed -N 1 -p 2 -b horovod-gloo --name digits --max-run-duration-seconds 90 --env A=1 --env MY_TOKEN "
        "--no-panel -o run"
    )
    assert body == form["code"] == CELL.partition("\n")[2]
    assert form["options"]["environment_variables"] == {"A": "1"}


@pytest.mark.parametrize(
    ("question", "field", "words"),
    [
        ({"code": "train(", "standalone": True}, "cell", "Line 1 of the cell is not valid Python"),
        ({"code": "\n%%bash\nls"}, "cell", "begins with %%bash"),
        ({"code": "%%distributed -p 2\n"}, "cell", "The cell is empty"),
        ({"code": "%%distributed --nme x\n1"}, "line", "Did you mean --name? "),
        ({"code": "1\0"}, "cell", "null bytes"),
        ({"code": "1", "values": {"name": "a\nb"}}, "name", "1 to 120 printable characters"),
        ({"code": "1", "values": {"process_count_per_node": 2, "distributed_backend": "plain"}},
         "distributed_backend", "plain runs one process"),
        ({"code": "1", "values": {"use_gpu": "yes", "distributed_backend": "torch"}}, "use_gpu", "machine has none"),
    ],
)  # fmt: skip
def test_what_is_wrong_stands_beside_its_field_and_nothing_is_lost(server, question, field, words):
    form = server.post("/form", question, 200)
    assert words in form["problems"][field], form["problems"]
    assert (question.get("values") or {}).items() <= form["values"].items()


def test_text_of_its_own_has_no_notebook_to_take_names_from(server):
    form = server.post("/form", {"code": "print(model)", "standalone": True}, 200)
    assert form["captured"] == []
    assert form["checks"]["level"] == "error"
    assert "model" in json.dumps(form["checks"]["items"])


def test_a_script_brings_its_folder_along(server, root):
    (root / "proj").mkdir()
    (root / "proj" / "model.py").write_text("NAME = 'net'\n")
    code = "import model\nprint(model.NAME)"
    form = server.post("/form", {"code": code, "notebook": "proj/train.py", "standalone": True}, 200)
    assert form["values"]["name"] == "train"
    assert [item["name"] for item in form["captured"]] == ["model.py"]
    id_ = server.submit(code, notebook="proj/train.py", options=form["options"])
    assert server.until_ended(id_)["state"] == "completed"
    assert "net" in server.ask("GET", f"/jobs/{id_}/log", params={"format": "text"}).text
    assert (
        server.post("/form", {"code": "1", "notebook": "../train.py", "standalone": True}, 400)["field"] == "notebook"
    )


def test_another_kernels_python_answers_for_its_own_environment(server, tmp_path):
    """A kernel with its own environment variables is asked in a process of its own."""
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernelspec(tmp_path, "other", argv, env={"CUDA_VISIBLE_DEVICES": ""})
    own = server.post("/form", {"code": CELL}, 200)
    assert server.post("/form", {"code": CELL, "kernel_name": "other"}, 200) == own
    assert server.post("/form", {"code": CELL, "kernel_name": "none"}, 400)["field"] == "kernel_name"


def test_local_paths_of_data_begin_in_the_notebooks_folder(server, root):
    (root / "proj" / "labels").mkdir(parents=True)
    (root / "proj" / "labels" / "a.txt").write_text("1")
    code = "%%distributed -p 1 -b plain --data labels=./labels\n1"
    question = {
        "code": code,
        "notebook": "proj/train.ipynb",
    }
    for more in ({}, {"standalone": True}):
        assert "data" not in server.post("/form", {**question, **more}, 200)["problems"]
    shown = server.post("/form", {**question, "notebook": "train.ipynb"}, 200)
    assert "does not exist here" in shown["problems"]["data"]


def long_code(size):
    return "x = [" + "f(1, 2), " * (size // 9) + "]"


def readers(root):
    """Return the processes that work forms out in a folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if "distdl_jupyter.api.submit_process" in (process.info["cmdline"] or ()) and process.cwd() == str(root):
                found.append(process)
    return found


def test_code_has_a_limit(server):
    for path in ("/form", "/jobs"):
        refused = server.post(path, {"code": long_code(400_000)}, 400)
        assert refused["field"] == "code"
        assert "bytes, but the limit of this server is 300,000." in refused["message"]


@pytest.mark.fault("handlers", "a long text is parsed in a separate process, which ends when the page closes")
def test_a_page_that_goes_ends_the_process_that_reads_its_text(server, root):
    with ThreadPoolExecutor(1) as pages:
        asked = pages.submit(ask_shortly, server, long_code(290_000), 1.5)
        (reader,) = wait_for(lambda: readers(root), what="a process that reads")
        asked.result()
    reader.wait(1.0)


@pytest.mark.fault("handlers", "many long texts at once delay no other request")
def test_many_long_texts_keep_nobody_waiting(server, root):
    with ThreadPoolExecutor(10) as pages:
        asked = [pages.submit(ask_shortly, server, long_code(290_000)) for _ in range(10)]
        wait_for(lambda: readers(root), what="a process that reads")
        begun = time.monotonic()
        server.get("/jobs")
        assert not all(one.done() for one in asked), "they were too quick to tell anything"
        assert time.monotonic() - begun < 2.0
    wait_for(lambda: not readers(root), what="the end of the processes")


def ask_shortly(server, code, seconds=4.0):
    with contextlib.suppress(httpx.TimeoutException):
        httpx.post(f"{server.url}{API}/form", json={"code": code}, headers=dict(server.client.headers), timeout=seconds)


def test_a_process_that_takes_too_long_is_ended(root):
    with serve(root, traits={"form_seconds": 1.0}) as server:
        assert "did not respond within 1 s" in server.post("/form", {"code": long_code(290_000)}, 502)["message"]
        assert not readers(root)


def test_no_path_above_the_servers_folder_is_looked_at(server, root):
    (root.parent / "labels").mkdir()
    question = {"code": "%%distributed -p 1 -b plain --data labels=./labels\n1", "notebook": "../train.ipynb"}
    assert "does not exist here" in server.post("/form", question, 200)["problems"]["data"]
