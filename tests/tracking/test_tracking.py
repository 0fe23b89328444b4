"""Experiment trackers: their points, one run for all ranks, and that no trouble of theirs is a job's."""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import types
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest

from distdl_jupyter import submit
from distdl_jupyter.core import tracking, user_settings
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.core.events import State
from distdl_jupyter.core.spec import Captured, GitState, JobEnvironment, JobSpec
from distdl_jupyter.magic import commands
from distdl_jupyter.tracking import trackers
from distdl_jupyter.tracking.runs import MeanAggregator, collect_parameters, collect_tags, explain
from distdl_jupyter.views.job_page import make_spec_rows
from tests.conftest import wait_for
from tests.faults.disks import fill, free, mount, unmount
from tests.processes import free_port
from tests.tracking.packages import installed

SECRET = "hunter2-and-more"


@pytest.fixture(autouse=True)
def configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)


# points ---------------------------------------------------------------------------------------


def metric(t, rank, step, **values):
    return {"v": 1, "t": t, "type": "metric", "rank": rank, "step": step, "values": values}


def folded(events, count=2):
    fold = MeanAggregator(count)
    points = [point for event in events for point in fold.apply(event)]
    return points, fold


def short(points):
    return [(point.name, point.step, point.value) for point in points]


def test_a_step_is_the_mean_when_all_ranks_have_reported_it():
    points, fold = folded([metric(1, 0, 0, loss=1.0), metric(1.1, 1, 0, loss=3.0), metric(1.2, 0, 1, loss=2.0)])
    assert short(points) == [("loss", 0, 2.0)]
    assert points[0].t == 1.1
    assert fold.apply({"type": "progress", "t": 2.0}) == []
    assert short(fold.apply({"type": "progress", "t": 20.0})) == [("loss", 1, 2.0)]
    assert fold.flush() == []


def test_a_metric_of_one_rank_is_written_when_that_goes_on():
    points, fold = folded([metric(11.0 * n, 0, n, val=float(n)) for n in range(3)])
    assert short(points) == [("val", 0, 0.0), ("val", 1, 1.0)]
    assert short(fold.flush()) == [("val", 2, 2.0)]


def test_a_restart_completes_the_steps_before_it():
    events = [metric(1, 0, 5, loss=1.0), {"v": 1, "t": 2, "type": "restart", "reason": ""}, metric(3, 1, 5, loss=3.0)]
    points, fold = folded(events)
    assert short(points) == [("loss", 5, 1.0)]
    assert short(fold.flush()) == [("loss", 5, 3.0)]


def test_parameters_and_tags_hold_no_secret():
    spec = JobSpec(
        id="20261121-024912-k3f9x", name="plan", node_count=2, distributed_backend="torch", max_restarts=3,
        captured=(
            Captured(name="lr", kind="value", detail="float = 0.1"),
            Captured(name="url", kind="value", detail=f"str = 'https://ann:{SECRET}@db.example/x'"),
            Captured(name="train", kind="function", detail="function, cell [3]"),
        ),
        environment_variables={"WHO": "ann"}, script_arguments=("--lr", "0.1"),
    )  # fmt: skip
    found = collect_parameters(spec)
    assert (found["lr"], found["distdl.node_count"], found["distdl.max_restarts"]) == ("0.1", "2", "3")
    assert found["script_arguments"] == "--lr 0.1"
    assert "train" not in found
    about = collect_tags(spec, JobEnvironment(git=GitState("abc", "main", "https://git.example/x.git", "a diff")))
    assert (about["git.commit"], about["git.changed"], about["distdl.backend"]) == ("abc", "true", "torch")
    assert SECRET not in repr((found, about))
    assert "ann" not in repr(about)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionError(f"http://u:{SECRET}@h"), "MLflow at h cannot be reached."),
        (
            RuntimeError(f"failed with error code 401 {SECRET}"),
            "rejected the user name, password or token (401).",
        ),
        (RuntimeError(f"failed with error code 500 {SECRET}"), "MLflow at h responded with 500."),
        (ValueError(SECRET), "MLflow at h rejected the request (ValueError)."),
    ],
)
def test_what_a_library_raises_is_a_sentence_without_its_words(error, said):
    sentence = explain("MLflow", "h", error)
    assert said in sentence
    assert SECRET not in sentence


def test_settings_are_checked_and_shown_without_a_password(capsys):
    commands.change_tracking(
        {"track": "MLflow, tensorboard", "mlflow": f"https://ann:{SECRET}@tracking.example:5000/x"}
    )
    said = capsys.readouterr().out
    assert "track = mlflow,tensorboard\nmlflow = tracking.example:5000\n" in said
    assert SECRET not in said
    assert user_settings.SETTINGS.path.stat().st_mode & 0o077 == 0
    for given in ({"track": "excel"}, {"artifacts": "some"}, {"mlflow": "a b"}, {"address": "json://x.example"}):
        with pytest.raises(InvalidSpec):
            commands.change_tracking(given)
    assert user_settings.change_settings(track="", mlflow="").track == ""


def test_a_missing_package_is_one_sentence_with_its_extra():
    code = "import sys; sys.modules[sys.argv[1]] = None\nfrom distdl_jupyter.tracking import runs\nruns.main()\n"
    job = submit(alone, name="alone", distributed_backend="plain")
    job.wait(60)
    command = [sys.executable, "-c", code.replace("sys.argv[1]", "'wandb'"), str(job.folder.path), "wandb"]
    done = subprocess.run(command, input="{}", capture_output=True, text=True, timeout=60)
    text = "Weights & Biases needs a package: pip install 'distdl-jupyter[wandb]'"
    assert done.stdout == f"wandb: {text}\n"
    assert [str(record) for record in job.tracking()] == [f"Weights & Biases: {text}"]


# jobs -----------------------------------------------------------------------------------------


def alone():
    import distdl_jupyter

    for step in range(5):
        distdl_jupyter.log(step=step, loss=1.0 / (step + 1))


def records(job):
    return {one.tracker: one for one in tracking.read_records(job.folder.path)}


def complete(job, *names, timeout=120):
    def done():
        found = records(job)
        return found if all(name in found and found[name].done for name in names) else None

    return wait_for(done, timeout=timeout, what=f"{names}: {records(job)}")


def scalars(folder, tag):
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))  # no TensorFlow
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [(one.step, round(one.value, 4)) for one in accumulator.Scalars(tag)]


def test_a_job_is_tracked_with_event_files_and_once_more_with_nothing_written_twice():
    job = submit(alone, name="alone", distributed_backend="plain", track="tensorboard")
    assert job.wait(60).state is State.COMPLETED
    found = complete(job, "tensorboard")["tensorboard"]
    expected = [(step, round(1 / (step + 1), 4)) for step in range(5)]
    assert scalars(f"{found.location}/mean", "loss") == expected
    assert str(job.track()[0]) == f"TensorBoard: run {job.id} at {found.location}, complete"
    assert scalars(f"{found.location}/mean", "loss") == expected
    (row,) = [row for row in make_spec_rows(job.spec) if row.field == "track"]
    assert (row.label, row.value) == ("Tracked with", "TensorBoard")


# all three, with a real server ----------------------------------------------------------------


def together(lr, password, pause, until):
    import os
    import pathlib
    import time

    import torch.distributed as dist

    import distdl_jupyter

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(20):
        distdl_jupyter.log(step=step, loss=1.0 / (step + 1) + rank)
        time.sleep(pause)
    while until and not pathlib.Path(until).exists():
        time.sleep(0.1)
    if rank == 0:
        pathlib.Path(os.environ["DISTDL_JOB_DIR"], "outputs", "model.txt").write_text("weights")
        print("token", os.environ.get("MLFLOW_TRACKING_TOKEN"))
    dist.destroy_process_group()


EXPECTED = [(step, round(1 / (step + 1) + 0.5, 4)) for step in range(20)]


@pytest.fixture
def packages(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(folder := installed()))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.syspath_prepend(str(folder))
    return folder


class Server:
    """A real ``mlflow server``."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        command = [
            sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{self.folder}/m.db",
            "--artifacts-destination", str(self.folder / "artifacts"), "--host", "127.0.0.1", "--port", str(self.port),
            "--workers", "1",
        ]  # fmt: skip
        with (self.folder / "server.log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=self.folder)

        def answers():
            try:
                return urllib.request.urlopen(f"{self.address}/health", timeout=2).status == 200
            except OSError:
                return False

        wait_for(answers, timeout=120, what="mlflow server")
        return self

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def runs(self, job):
        from mlflow import MlflowClient

        client = MlflowClient(self.address)
        every = [one.experiment_id for one in client.search_experiments()]
        return client, client.search_runs(every, f"tags.`distdl.job_id` = '{job.id}'")

    def history(self, job, name="loss"):
        client, runs = self.runs(job)
        assert len(runs) == 1, "one run for all ranks"
        return [(one.step, round(one.value, 4)) for one in client.get_metric_history(runs[0].info.run_id, name)]


@pytest.fixture
def server(tmp_path, packages):
    (tmp_path / "mlflow").mkdir()
    found = Server(tmp_path / "mlflow")
    yield found
    found.stop()


def tracker_processes(job):
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "distdl_jupyter.tracking.runs" in line and str(job.folder.path) in line:
            found.append(process)
    return found


def tracked(pause=0.1, until="", track="mlflow", **more):
    return submit(
        together, (0.1, SECRET, pause, str(until)), name="together", process_count_per_node=2,
        distributed_backend="torch", track=track, **more,
    )  # fmt: skip


def assert_no_secret(job):
    for path in job.folder.path.rglob("*"):
        if path.is_file() and path.suffix != ".pkl":
            assert SECRET.encode() not in path.read_bytes(), path


@pytest.mark.full
@pytest.mark.timeout(600)
def test_two_ranks_are_one_run_in_all_three(server, monkeypatch):
    server.start()
    user_settings.change_settings(mlflow=f"http://ann:{SECRET}@127.0.0.1:{server.port}", artifacts="outputs")
    variables = {"MLFLOW_TRACKING_TOKEN": SECRET, "WANDB_MODE": "offline"}
    job = tracked(track="mlflow,tensorboard,wandb", environment_variables=variables)
    assert job.wait(200).state is State.COMPLETED
    found = complete(job, *tracking.TITLES)
    client, (run,) = server.runs(job)
    assert run.info.status == "FINISHED"
    assert run.info.run_id == found["mlflow"].run
    assert found["mlflow"].url.endswith(f"/runs/{run.info.run_id}")
    assert run.data.params["lr"] == "0.1"
    assert run.data.params["distdl.process_count_per_node"] == "2"
    assert (run.data.tags["distdl.backend"], run.data.tags["mlflow.runName"]) == ("torch", "together")
    assert server.history(job) == EXPECTED
    assert [one.path for one in client.list_artifacts(run.info.run_id, "outputs")] == ["outputs/model.txt"]

    assert scalars(f"{found['tensorboard'].location}/mean", "loss") == EXPECTED

    (offline,) = (job.folder.path / "tracking" / "wandb" / "wandb").glob(f"offline-run-*-{job.id}")
    assert offline_rows(offline / f"run-{job.id}.wandb", "loss") == EXPECTED
    assert_no_secret(job)


def offline_records(path):
    """Yield the records of W&B's file: LevelDB's log format (leveldb/doc/log_format.md) behind a header of 7 bytes."""
    data, at, whole = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the end of a block
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield whole
            whole = b""


def offline_rows(path, name):
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for content in offline_records(path):
        record = Record.FromString(content)
        if record.WhichOneof("record_type") == "history":
            row = {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in record.history.item}
            rows += [(row["step"], round(row[name], 4))] if name in row else []
    return rows


@pytest.mark.fault("trackers", "the job continues and reports it; when the tracker is back, it gets everything, once")
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_server_that_is_down_at_first_and_in_the_middle_misses_nothing(server, tmp_path):
    user_settings.change_settings(mlflow=server.address)
    go_on = tmp_path / "go-on"
    job = tracked(until=go_on)
    wait_for(lambda: [note for note in job.view().notes if note["code"] == "tracking"], timeout=120)
    (note,) = [note for note in job.view().notes if note["code"] == "tracking"]
    assert (note["level"], note["text"]) == ("warning", f"MLflow at 127.0.0.1:{server.port} cannot be reached.")
    server.start()
    wait_for(lambda: len([note for note in job.view().notes if note["code"] == "tracking"]) == 2, timeout=120)
    assert job.view().notes[-1]["text"] == "MLflow is up to date again."
    server.stop()
    go_on.touch()
    assert job.wait(60).state is State.COMPLETED, "the job waits for no tracker"
    assert not records(job)["mlflow"].done
    server.start()
    complete(job, "mlflow")
    assert server.history(job) == EXPECTED
    assert server.runs(job)[1][0].info.status == "FINISHED"


@pytest.mark.fault("trackers", "a full disk is reported and delays no job; with free space the tracker gets everything")
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_tracker_whose_disk_is_full(server, tmp_path):
    mount(server.folder, "size=64m")
    try:
        server.start()
        user_settings.change_settings(mlflow=server.address)
        go_on = tmp_path / "go-on"
        job = tracked(until=go_on)
        wait_for(lambda: records(job).get("mlflow") and records(job)["mlflow"].run, timeout=120)
        fill(server.folder)
        go_on.touch()
        assert job.wait(60).state is State.COMPLETED, "the job waits for no tracker"
        wait_for(lambda: records(job)["mlflow"].trouble, timeout=200, what="the trouble")
        assert not records(job)["mlflow"].done
        free(server.folder)
        complete(job, "mlflow", timeout=300)
        assert server.history(job) == EXPECTED
    finally:
        server.stop()
        unmount(server.folder)


@pytest.mark.fault("trackers", "the tracker process and the supervisor are killed: one run, nothing duplicated")
@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_deaths_of_tracker_and_supervisor_make_no_second_run(server, tmp_path):
    server.start()
    user_settings.change_settings(mlflow=server.address)
    job = tracked(until=tmp_path / "never")
    wait_for(lambda: records(job).get("mlflow") and records(job)["mlflow"].events > 0, timeout=120)
    (process,) = tracker_processes(job)
    process.kill()
    supervisor = psutil.Process(job.view().ranks[0].pid).parent()
    supervisor.kill()
    wait_for(lambda: job.state is State.LOST, timeout=60)
    complete(job, "mlflow")
    assert server.history(job) == EXPECTED
    assert server.runs(job)[1][0].info.status == "FAILED"


class Refusing(BaseHTTPRequestHandler):
    """Answers 401 to all, with what it was sent."""

    def do_GET(self):
        answer = f"{self.path} {self.headers}".encode()
        self.send_response(401)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET  # noqa: N815 - so it is called

    def log_message(self, *_):
        pass


@pytest.mark.fault("trackers", "rejected: one sentence without the token; with a valid one it gets everything")
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_wrong_token_is_one_sentence_and_a_later_right_one_brings_all(server, packages):
    refusing = ThreadingHTTPServer(("127.0.0.1", server.port), Refusing)
    threading.Thread(target=refusing.serve_forever, daemon=True).start()
    user_settings.change_settings(mlflow=f"http://ann:{SECRET}@127.0.0.1:{server.port}")
    job = tracked(environment_variables={"MLFLOW_TRACKING_TOKEN": SECRET})
    assert job.wait(120).state is State.COMPLETED
    wait_for(lambda: records(job).get("mlflow") and records(job)["mlflow"].trouble, timeout=60)
    said = records(job)["mlflow"].trouble
    assert said == f"MLflow at 127.0.0.1:{server.port} rejected the user name, password or token (401)."
    assert_no_secret(job)
    refusing.shutdown()
    refusing.server_close()
    for process in tracker_processes(job):
        process.kill()
        process.wait()
    server.start()
    user_settings.change_settings(mlflow=server.address)
    (record,) = job.track()
    assert record.done
    assert server.history(job) == EXPECTED


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # of SQLAlchemy, for MLflow
def test_without_any_address_runs_are_in_the_user_s_own_store_unless_a_job_is_not_tracked(packages):
    user_settings.change_settings(track="mlflow")
    job = submit(alone, name="alone", distributed_backend="plain")
    other = submit(alone, name="other", distributed_backend="plain", track="off")
    assert job.wait(60).state is State.COMPLETED
    complete(job, "mlflow")
    from mlflow import MlflowClient

    run = MlflowClient(trackers.get_local_store()).get_run(records(job)["mlflow"].run)
    assert run.data.metrics["loss"] == pytest.approx(0.2)
    other.wait(60)
    assert records(other) == {}
