"""Batch AI's jobs become jobs of this package, and each field says what became of it."""

import json

import pytest

from distdl_jupyter.compat import batchai
from distdl_jupyter.core.errors import InvalidSpec

HOROVOD = {
    "properties": {
        "nodeCount": 2,
        "horovodSettings": {
            "pythonScriptFilePath": "$AZ_BATCHAI_JOB_MOUNT_ROOT/scripts/horovod/mnist.py",
            "commandLineArgs": "--data $AZ_BATCHAI_JOB_MOUNT_ROOT/data/mnist --out $AZ_BATCHAI_JOB_MOUNT_ROOT/logs/run",
            "processCount": 4,
        },
        "stdOutErrPathPrefix": "$AZ_BATCHAI_JOB_MOUNT_ROOT/logs",
        "mountVolumes": {
            "azureFileShares": [{"azureFileUrl": "https://x.file.core.windows.net/s", "relativeMountPath": "scripts"}],
            "azureBlobFileSystems": [
                {
                    "accountName": "acct",
                    "containerName": "train",
                    "relativeMountPath": "data",
                    "credentials": {"accountKey": "S3CRET=="},
                }
            ],
        },
        "outputDirectories": [{"id": "MODEL", "pathPrefix": "$AZ_BATCHAI_JOB_MOUNT_ROOT/data/out"}],
    }
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "scripts" / "horovod").mkdir(parents=True)
    (tmp_path / "scripts" / "horovod" / "mnist.py").write_text("import horovod.torch as hvd\nhvd.init()\n")
    (tmp_path / "job.json").write_text(json.dumps(HOROVOD))
    return tmp_path


def job(folder, **changes):
    fields = {**HOROVOD["properties"], **changes}
    path = folder / "changed.json"
    path.write_text(json.dumps({"properties": {name: value for name, value in fields.items() if value is not None}}))
    return path


def rows(explanation, field):
    return [row for row in explanation.rows if row.field == field]


def test_a_job_of_horovod_settings(folder):
    found = batchai.read(folder / "job.json")
    assert found.problems == []
    assert found.script == (folder / "scripts" / "horovod" / "mnist.py").resolve()
    assert found.options == {
        "node_count": 2,
        "process_count_per_node": 2,
        "distributed_backend": "horovod-gloo",
        "data": {"mnist": "blob://acct/train/mnist"},
        "outputs": "blob://acct/train/out",
    }
    layout = dict(found.layout["variables"])
    assert layout["AZ_BATCHAI_OUTPUT_MODEL"] == "$DISTDL_JOB_DIR/outputs/MODEL"
    assert ("$AZ_BATCHAI_MOUNT_ROOT/data/mnist", "$DISTDL_DATA_MNIST") in found.layout["links"]
    assert ("$AZ_BATCHAI_MOUNT_ROOT/logs/run", "$DISTDL_JOB_DIR/outputs/logs/run") in found.layout["links"]


def test_a_container_is_said_to_be_downloaded_and_its_key_stays_unread(folder):
    told = batchai.explain(folder / "job.json")
    assert told.ready
    (row,) = rows(told, "path")[:1]
    assert "blob://acct/train/mnist, copied to the disk of each node before the start" in row.here
    for text in (repr(told), told._repr_html_(), repr(batchai.read(folder / "job.json"))):
        assert "S3CRET" not in text


def test_the_table_escapes_what_the_job_says(folder):
    told = batchai.explain(job(folder, schedulingPriority="<script>alert(1)</script>"))
    assert "<script>" not in told._repr_html_()
    assert "ignored: priorities are not supported" in repr(told)


def test_inputs_are_sources_of_data_and_the_script_s_folder_is_itself(folder):
    (folder / "digits").mkdir()
    inputs = [
        {"id": "SCRIPTS", "path": "$AZ_BATCHAI_JOB_MOUNT_ROOT/scripts/horovod"},
        {"id": "TRAIN", "path": "$AZ_BATCHAI_JOB_MOUNT_ROOT/data/mnist"},
        {"id": "HERE", "path": "$AZ_BATCHAI_MOUNT_ROOT/nfs/digits"},
    ]
    settings = {"commandLine": "mpirun -np 4 python $AZ_BATCHAI_INPUT_SCRIPTS/mnist.py --data $AZ_BATCHAI_INPUT_TRAIN"}
    found = batchai.read(job(folder, inputDirectories=inputs, horovodSettings=None, customToolkitSettings=settings))
    assert found.problems == []
    assert found.options["data"] == {"train": "blob://acct/train/mnist", "here": str(folder / "digits")}
    layout = dict(found.layout["variables"])
    assert layout["AZ_BATCHAI_INPUT_SCRIPTS"] == str(folder / "scripts" / "horovod")
    assert layout["AZ_BATCHAI_INPUT_TRAIN"] == "$DISTDL_DATA_TRAIN"
    assert found.arguments == ("--data", "$AZ_BATCHAI_INPUT_TRAIN")


def test_what_is_nowhere_here_is_missing_until_mounts_names_it(folder):
    inputs = [{"id": "TRAIN", "path": "$AZ_BATCHAI_MOUNT_ROOT/nfs/imagenet"}]
    changed = job(folder, inputDirectories=inputs)
    told = batchai.explain(changed)
    assert not told.ready
    assert "MISSING" in repr(told)
    with pytest.raises(InvalidSpec, match=r'batchai_mounts=\{"nfs": "shared:/PATH"\}'):
        batchai.draft(changed)
    found = batchai.read(changed, batchai_mounts={"nfs": "shared:/mnt/nfs"})
    assert found.problems == []
    assert found.options["data"]["train"] == "shared:/mnt/nfs/imagenet"


def test_a_script_that_is_not_here_is_named(folder):
    settings = {"pythonScriptFilePath": "$AZ_BATCHAI_JOB_MOUNT_ROOT/scripts/gone.py"}
    with pytest.raises(InvalidSpec, match=r"gone\.py was not found.*batchai_mounts="):
        batchai.draft(job(folder, horovodSettings=settings))


def test_a_script_that_the_preparation_had_fetched_is_found_by_its_path(folder):
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "bench.py").write_text("print(1)\n")
    settings = {"pythonScriptFilePath": "$AZ_BATCHAI_JOB_TEMP/fetched/benchmarks/bench.py"}
    found = batchai.read(job(folder, horovodSettings=settings))
    assert found.script == (folder / "benchmarks" / "bench.py").resolve()


def test_variables_that_nothing_sets_are_named(folder):
    settings = {**HOROVOD["properties"]["horovodSettings"],
                "commandLineArgs": "--hosts $AZ_BATCHAI_WORKER_HOSTS --store $AZ_BATCHAI_SHARED_JOB_TEMP"}  # fmt: skip
    told = rows(batchai.explain(job(folder, horovodSettings=settings)), "variable")
    assert [(row.said, row.how) for row in told] == [
        ("$AZ_BATCHAI_WORKER_HOSTS", "ignored"),
        ("$AZ_BATCHAI_SHARED_JOB_TEMP", "changed"),
    ]


def test_mounts_say_where_the_script_is(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mnist.py").write_text("print(1)\n")
    found = batchai.read(folder / "job.json", batchai_mounts={"scripts/horovod": str(elsewhere)})
    assert found.script == elsewhere / "mnist.py"


def test_secrets_come_from_the_environment_and_stand_nowhere(folder, monkeypatch):
    changed = job(folder, secrets=[{"name": "PIN", "value": "in-the-file"}])
    with pytest.raises(InvalidSpec, match="PIN is not in the environment"):
        batchai.draft(changed)
    monkeypatch.setenv("PIN", "from-outside")
    captured, options = batchai.draft(changed)
    assert options["environment_variables"] == {"PIN": "from-outside"}
    assert captured.secret_variables == {"PIN"}
    for text in (repr(batchai.explain(changed)), json.dumps(captured.payload_json)):
        assert "from-outside" not in text
        assert "in-the-file" not in text


def test_secret_arguments_are_hidden(folder):
    settings = {"pythonScriptFilePath": "$AZ_BATCHAI_JOB_MOUNT_ROOT/scripts/horovod/mnist.py",
                "commandLineArgs": "--api-token abc123 --password=xyz --lr 0.1"}  # fmt: skip
    told = repr(batchai.explain(job(folder, horovodSettings=settings)))
    assert "abc123" not in told
    assert "xyz" not in told
    assert "--api-token ••• --password=••• --lr 0.1" in told


def test_arguments_are_split_as_a_shell_splits_them(folder):
    settings = {"pythonScriptFilePath": "scripts/horovod/mnist.py", "commandLineArgs": "--dir=$ROOT/x --name 'a b'"}
    assert batchai.read(job(folder, horovodSettings=settings)).arguments == ("--dir=$ROOT/x", "--name", "a b")


def test_secrets_in_a_command_line_are_hidden(folder):
    line = "API_KEY=abc123 mpirun -x DB_PASSWORD=xyz python mnist.py --lr 1 --api-token 'q w' --auth-token=uvw"
    changed = job(folder, horovodSettings=None, customToolkitSettings={"commandLine": f"curl --token tuv; {line}"})
    told = repr(batchai.explain(changed))
    assert [secret for secret in ("abc123", "xyz", "q w", "'q", "w'", "uvw", "tuv") if secret in told] == []
    assert "--lr 1" in told


def test_variables_of_batch_ai_are_filled_in_by_the_ranks(folder):
    variables = [
        {"name": "HOROVOD_TIMELINE", "value": "$AZ_BATCHAI_OUTPUT_MODEL/timeline.json"},
        {"name": "OMP_NUM_THREADS", "value": "2"},
    ]
    found = batchai.read(job(folder, environmentVariables=variables))
    assert found.options["environment_variables"] == {"OMP_NUM_THREADS": "2"}
    names = [name for name, _ in found.layout["variables"]]
    assert names.index("AZ_BATCHAI_JOB_TEMP") < names.index("HOROVOD_TIMELINE")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7 days, 0:00:00", 604800), ("1.00:00:00", 86400), ("0:30:00", 1800), ("PT2H", 7200), ("P1DT1M", 86460)],
)
def test_limits_of_time(folder, text, seconds):
    found = batchai.read(job(folder, constraints={"maxWallClockTime": text}))
    assert found.options["max_run_duration_seconds"] == seconds


def test_what_az_showed_of_a_job_that_ran(folder):
    flat = {**HOROVOD["properties"], "name": "mnist_1", "cntkSettings": None, "executionState": "running",
            "cluster": {"id": "/subscriptions/0/clusters/nc6"}, "schedulingPriority": "normal"}  # fmt: skip
    path = folder / "shown.json"
    path.write_text(json.dumps(flat))
    told = batchai.explain(path)
    assert told.ready
    assert rows(told, "cluster")[0].said == "nc6"
    assert rows(told, "executionState")[0].how == "ignored"
    assert batchai.read(path).options["name"] == "mnist_1"


def test_the_cluster_s_retired_size_is_answered_with_its_successor(folder):
    (folder / "cluster.json").write_text('{"properties": {"vmSize": "STANDARD_NC6"}}')
    (row,) = rows(batchai.explain(folder / "job.json"), "cluster: vmSize")
    assert row.became.startswith("retired; today Standard_")
    (row,) = rows(batchai.explain(folder / "job.json", cluster={"vmSize": "Standard_X1"}), "cluster: vmSize")
    assert row.became == "the size is not in the catalogue"


def test_preparation_and_image_are_told_not_done(folder):
    line = "apt update; pip install 'surely-absent>=0.1' x-absent[y] -r more.txt && python -m pip install numpy"
    changed = job(folder, jobPreparation={"commandLine": line},
                  containerSettings={"imageSourceRegistry": {"image": "tensorflow/tensorflow:1.8.0-gpu"}})  # fmt: skip
    told = batchai.explain(changed)
    assert rows(told, "jobPreparation")[0].became.endswith("not installed; run: pip install surely-absent x-absent")
    assert rows(told, "containerSettings: image")[0].how == "ignored"


def test_a_field_that_nobody_knows_is_named(folder):
    (row,) = rows(batchai.explain(job(folder, nodeCounts=3)), "nodeCounts")
    assert "not a field of Batch AI jobs" in row.here


def test_every_field_of_the_job_stands_in_the_table(folder):
    told = batchai.explain(folder / "job.json")
    said = " ".join(row.field for row in told.rows)
    for field in ("nodeCount", "horovodSettings", "stdOutErrPathPrefix", "azureFileShares", "azureBlobFileSystems",
                  "outputDirectories"):  # fmt: skip
        assert field in said


@pytest.mark.parametrize(
    ("toolkit", "settings", "nodes", "backend", "processes"),
    [
        ("horovodSettings", {"pythonScriptFilePath": "t.py"}, 2, "horovod-gloo", 2),
        ("pyTorchSettings", {"pythonScriptFilePath": "t.py", "communicationBackend": "nccl"}, 2, "torch-nccl", 2),
        ("pyTorchSettings", {"pythonScriptFilePath": "t.py", "communicationBackend": "tcp"}, 1, "torch-gloo", 1),
        ("pyTorchSettings", {"pythonScriptFilePath": "t.py"}, 2, "torch", 2),
        ("tensorFlowSettings", {"pythonScriptFilePath": "t.py", "masterCommandLineArgs": "-a"}, 3, "plain", 1),
        ("customMpiSettings", {"commandLine": "python t.py", "processCount": 4}, 2, "horovod-mpi", 4),
        ("customToolkitSettings", {"commandLine": "python t.py"}, 2, "plain", 1),
        ("customToolkitSettings", {"commandLine": "mpirun -ppn 4 python t.py"}, 2, "horovod-mpi", 8),
        ("customToolkitSettings", {"commandLine": "mpirun python t.py"}, 2, "horovod-mpi", 2),
        ("chainerSettings", {"pythonScriptFilePath": "t.py", "processCount": 2}, 1, "horovod-mpi", 2),
        ("cntkSettings", {"pythonScriptFilePath": "t.py", "languageType": "Python"}, 1, "plain", 1),
        ("caffe2Settings", {"pythonScriptFilePath": "t.py"}, 2, "torch", 2),
        ("caffe2Settings", {"pythonScriptFilePath": "t.py"}, 1, "plain", 1),
    ],
)
def test_each_kind_of_settings(toolkit, settings, nodes, backend, processes, folder):
    (folder / "t.py").write_text("print(1)\n")
    found = batchai.read(job(folder, **{"nodeCount": nodes, "horovodSettings": None, toolkit: settings}))
    assert found.problems == []
    assert found.script == (folder / "t.py").resolve()
    options = found.options
    assert (options["distributed_backend"], options["node_count"] * options["process_count_per_node"]) == (
        backend, processes)  # fmt: skip


@pytest.mark.parametrize(
    ("toolkit", "settings", "says"),
    [
        ("tensorFlowSettings", {"pythonScriptFilePath": "t.py", "workerCount": 2}, "parameter servers"),
        ("caffeSettings", {"configFilePath": "net.prototxt"}, "no script to run"),
        ("horovodSettings", {"commandLineArgs": "-a"}, "no pythonScriptFilePath"),
        ("horovodSettings", {"pythonScriptFilePath": "t.py", "processCount": 3}, "3 processes cannot be divided"),
        ("customToolkitSettings", {"commandLine": "bash run.sh"}, "shell script run.sh"),
        ("customToolkitSettings", {"formula": 1}, "no commandLine"),
        ("horovodSettings", {"pythonScriptFilePath": "t.py", "commandLineArgs": "'--open"}, "No closing quotation"),
    ],
)
def test_what_cannot_run_here_is_refused_with_a_remedy(toolkit, settings, says, folder):
    changed = job(folder, **{"horovodSettings": None, toolkit: settings})
    with pytest.raises(InvalidSpec, match=says) as refused:
        batchai.draft(changed)
    assert refused.value.hint
    assert not batchai.explain(changed).ready


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nodeCount": "two"}, "nodeCount must be an integer of at least 1, not 'two'"),
        (
            {"horovodSettings": {"pythonScriptFilePath": "t.py", "processCount": 0}},
            "processCount must be an integer of at least 1, not 0",
        ),
        ({"horovodSettings": "t.py"}, "horovodSettings of the Batch AI job must be a JSON object"),
        ({"inputDirectories": {"id": "A"}}, "inputDirectories of the Batch AI job must be a list of JSON objects"),
        ({"environmentVariables": ["A=1"]}, "environmentVariables of the Batch AI job must be a list of JSON objects"),
        ({"stdOutErrPathPrefix": ["/logs"]}, "stdOutErrPathPrefix of the Batch AI job must be"),
    ],
)
def test_field_of_another_type_is_named(changes, says, folder):
    with pytest.raises(InvalidSpec, match=says):
        batchai.draft(job(folder, **changes))


def test_a_shell_script_beside_the_job_is_read(folder):
    (folder / "run.sh").write_text("mpirun -np 4 python $AZ_BATCHAI_JOB_MOUNT_ROOT/scripts/horovod/mnist.py\n")
    settings = {"commandLine": "$AZ_BATCHAI_JOB_MOUNT_ROOT/scripts/run.sh"}
    found = batchai.read(job(folder, horovodSettings=None, customToolkitSettings=settings))
    assert found.problems == []
    assert found.script is not None
    assert found.options["process_count_per_node"] == 2


def test_two_kinds_of_settings_and_none(folder):
    both = job(folder, pyTorchSettings={"pythonScriptFilePath": "t.py"})
    assert "2 types of toolkit settings" in repr(batchai.explain(both))
    assert "0 types of toolkit settings" in repr(batchai.explain(job(folder, horovodSettings=None)))


@pytest.mark.parametrize("text", ["[1]", "{}", '{"a": 1}', "nothing"])
def test_other_files_are_refused(folder, text):
    (folder / "other.json").write_text(text)
    with pytest.raises(InvalidSpec):
        batchai.read(folder / "other.json")


def test_a_missing_file_is_named(folder):
    with pytest.raises(InvalidSpec, match="does not exist"):
        batchai.read(folder / "absent.json")


def test_commas_after_the_last_item_are_taken(folder):
    text = json.dumps(HOROVOD["properties"])[:-1] + ",}"
    (folder / "comma.json").write_text(text)
    assert batchai.read(folder / "comma.json").problems == []


def test_a_dict_is_a_job_too(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert batchai.read(HOROVOD).script is not None


def test_the_storage_account_of_az_is_filled_in(folder, monkeypatch):
    mounts = {"azureBlobFileSystems": [{"accountName": "<AZURE_BATCHAI_STORAGE_ACCOUNT>", "containerName": "train",
                                        "relativeMountPath": "data"}]}  # fmt: skip
    monkeypatch.setenv("AZURE_BATCHAI_STORAGE_ACCOUNT", "mine")
    assert batchai.read(job(folder, mountVolumes=mounts)).options["data"]["mnist"] == "blob://mine/train/mnist"
