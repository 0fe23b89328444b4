"""What Azure ML is asked for, and what comes back from its artifacts."""

from pathlib import Path

import pytest

from distdl_jupyter.clusters.azureml import client, run
from distdl_jupyter.clusters.azureml.client import AzureMLOptions, Workspace
from distdl_jupyter.core import registry
from distdl_jupyter.core.errors import DataUnavailable, InvalidSpec
from distdl_jupyter.core.spec import JobSpec
from distdl_jupyter.core.store import JobStore, create_id
from distdl_jupyter.testing.sample import is_sentence

# azure-ai-ml warns of its own parts when it is imported.
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def folder():
    store = JobStore()
    return store.publish(store.prepare(create_id()))


def workspace(ml):
    return Workspace.from_options(AzureMLOptions(**ml.options))


def spec(**more):
    return JobSpec(id="20260101-000000-aaaaa", name="n", node_count=2, **more)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"distributed_backend": "ray"}, "distributed_backend"),
        ({"distributed_backend": "tensorflow", "process_count_per_node": 2}, "process_count_per_node"),
        ({"pip_packages": ("six",), "cluster_options": {"environment": "mine:3"}}, "pip_packages"),
    ],
)
def test_a_job_that_azure_ml_does_not_support_is_refused(options, field):
    with pytest.raises(InvalidSpec) as refused:
        client.check_spec(spec(**options))
    assert (refused.value.field, bool(refused.value.hint)) == (field, True)


def test_the_image_is_generated_once_and_named_afterwards(ml, tmp_path):
    made = client.build_environment(AzureMLOptions(), workspace(ml), spec(), tmp_path)
    assert made.name == client.IMAGE_NAME
    assert "horovod==0.28.1" in Path(made.path, "Dockerfile").read_text()
    ml.environments[made.name, made.version] = {"id": "x", "name": made.version, "properties": {}}
    assert client.build_environment(AzureMLOptions(), workspace(ml), spec(), tmp_path) == f"{made.name}:{made.version}"


def test_the_packages_of_a_job_are_part_of_its_image(ml, tmp_path):
    asked = spec(pip_packages=("six==1.17.0",), conda_packages=("ffmpeg=7",), requirements="rich\n")
    made = client.build_environment(AzureMLOptions(), workspace(ml), asked, tmp_path / "image")
    files = {path.name: path.read_text() for path in Path(made.path).iterdir()}
    lines = [line for line in files.pop("Dockerfile").splitlines() if "/tmp/" in line]
    assert files == {"packages.txt": "six==1.17.0\n", "conda.txt": "ffmpeg=7\n", "requirements.txt": "rich\n"}
    assert {line.split()[1] for line in lines if line.startswith("COPY")} == files.keys()
    assert sum("pip install" in line for line in lines) == 2
    plain = client.build_environment(AzureMLOptions(), workspace(ml), spec(), tmp_path / "plain")
    assert made.version != plain.version


@pytest.mark.parametrize(
    "given", ["mine:3", "azureml:mine@latest", "azureml://registries/azureml/environments/a/versions/1"]
)
def test_an_environment_that_is_there_is_named(ml, tmp_path, given):
    assert client.build_environment(AzureMLOptions(environment=given), workspace(ml), spec(), tmp_path) == given


def test_what_the_generated_image_lacks_is_said_before_a_job_starts(ml):
    cluster = registry.get("clusters", "azureml")
    options = AzureMLOptions(**{**ml.options, "environment": "generated"})
    rows = cluster.run_checks(options, modules=("horovod", "json", "nowhere"), programs=("mpirun",))
    assert [row.what for row in rows if row.level == "error"] == ["nowhere"]
    assert [row.what for row in rows if row.level == "ok"] == ["Azure", "Workspace", "Compute", "Image"]
    wrong = cluster.run_checks(AzureMLOptions(**{**ml.options, "compute": "other"}))
    assert [(row.what, row.level) for row in wrong if row.level == "error"] == [("Compute", "error")]


def test_gpus_of_the_vm_size_are_auto_and_every_rank_has_its_own():
    cluster = registry.get("clusters", "azureml")
    options = AzureMLOptions(vm_size="Standard_ND96asr_v4")
    assert cluster.process_count_per_node(options, use_gpu=None) == 8
    places = cluster.preview(spec(process_count_per_node=8), options).ranks
    assert [place.gpu for place in places] == [*range(8), *range(8)]
    with pytest.raises(InvalidSpec, match="has 1"):
        cluster.preview(spec(process_count_per_node=2, use_gpu=True), AzureMLOptions(vm_size="Standard_NC4as_T4_v3"))


def test_a_size_that_cannot_be_one_is_refused():
    with pytest.raises(InvalidSpec) as refused:
        AzureMLOptions(shm_size="8 GB")
    assert refused.value.field == "shm_size"
    assert is_sentence(refused.value.message)


def test_a_name_stays_one_part_of_an_address():
    path = Workspace("mine", "a/b", "w/../x").path
    assert path.startswith("/subscriptions/mine/resourceGroups/a%2Fb/providers/")
    assert path.endswith("/workspaces/w%2F..%2Fx")


# outputs ------------------------------------------------------------------------------------------


def kept(ml, azurite, name, files):
    """Put files into the artifacts of a run."""
    from tests.standin.ml import Job

    ml.jobs[name] = Job(name, {"properties": {}}, ml.folder / name, "Completed")
    container = ml.azurite.service.get_container_client("azureml")
    if not container.exists():
        container.create_container()
    for path, content in files.items():
        container.upload_blob(f"ExperimentRun/dcid.{name}/outputs/{path}", content, overwrite=True)


def test_files_that_were_downloaded_are_not_downloaded_again(ml, azurite, blob_proxy, signed_in, folder):
    content = bytes(range(256)) * 20_000
    kept(ml, azurite, "run1", {"deep/a.pt": content, "distdl/results/rank-0.pkl": b"value", "model.pt": content})
    signed_in.blob_at(blob_proxy.template)
    blob_proxy.add("model.pt", times=99, status=403, code="AuthorizationPermissionMismatch")
    with pytest.raises(DataUnavailable) as failed:
        run.collect(workspace(ml), "run1", folder, 1)
    assert "Storage Blob Data Reader" in failed.value.hint
    before = blob_proxy.sent("a.pt")
    assert before > 0
    blob_proxy.faults.clear()
    run.collect(workspace(ml), "run1", folder, 1)
    assert (folder.outputs / "model.pt").read_bytes() == (folder.outputs / "deep/a.pt").read_bytes() == content
    assert (folder.results / "rank-0.pkl").read_bytes() == b"value"
    assert blob_proxy.sent("a.pt") == before
    assert not list(folder.path.rglob("*.part"))


def test_only_values_of_the_job_s_own_ranks_come_back(ml, azurite, blob_proxy, signed_in, folder):
    names = ["rank-0.pkl", "rank-7.pkl", "planted.pkl", ".rank-0.pkl.77", "deep/rank-1.pkl"]
    kept(ml, azurite, "run3", {f"distdl/results/{name}": b"value" for name in names})
    stayed = run.collect(workspace(ml), "run3", folder, 2)
    assert [path.name for path in folder.results.rglob("*")] == ["rank-0.pkl"]
    assert sorted(stayed) == [
        f"results/{name}. The file was not copied; it is in the artifacts of the Azure ML job."
        for name in (
            "deep/rank-1.pkl is not the value of a rank",
            "planted.pkl is not the value of a rank",
            "rank-7.pkl is the value of a rank that did not run on this host",
        )
    ]


def test_a_name_that_leads_out_of_the_jobs_folder_is_left_where_it_is(folder):
    for name in ("../up.txt", "/etc/passwd", "a/../../b", ""):
        assert run.find_target_path(name, folder) is None
    assert run.find_target_path("distdl/results/rank-1.pkl", folder) == folder.results / "rank-1.pkl"
