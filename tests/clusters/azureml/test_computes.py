"""Compute clusters of Azure ML are listed, created and deleted; what Azure rejects has a remedy."""

import dataclasses

import pytest

from distdl_jupyter.azure import settings
from distdl_jupyter.clusters.azureml import cluster
from distdl_jupyter.clusters.azureml.client import AzureMLOptions
from distdl_jupyter.clusters.azureml.cluster import AzureMLCluster, ComputeSpec
from distdl_jupyter.core.errors import AzureRefused, ClusterRefused, InvalidSpec, NotSignedIn
from tests.standin.computes import SUBSCRIPTION, Computes
from tests.standin.prices import Prices
from tests.standin.server import refusal

OPTIONS = AzureMLOptions(subscription_id=SUBSCRIPTION, resource_group="vision", workspace="ws1", compute="gpu")
T4, A100 = "Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4"
SPEC = ComputeSpec(T4, max_nodes=4)
CLUSTER = AzureMLCluster()


@pytest.fixture
def service(signed_in):
    Prices(signed_in.server)
    return Computes(signed_in.server, signed_in.login)


def now(options=OPTIONS):
    return CLUSTER.get_machines(options)


def test_a_compute_cluster_is_created_and_deleted(service):
    assert (now().exists, CLUSTER.list_nodes(OPTIONS)) == (False, [])
    CLUSTER.create(OPTIONS, SPEC)
    created = next(request.json for request in service.server.requests if request.method == "PUT")
    assert (created["location"], created["identity"]["type"]) == ("westeurope", "SystemAssigned")
    assert (created["properties"]["computeType"], created["properties"]["disableLocalAuth"]) == ("AmlCompute", True)
    assert created["properties"]["properties"] == {
        "osType": "Linux",
        "vmSize": T4,
        "vmPriority": "Dedicated",
        "scaleSettings": {"minNodeCount": 0, "maxNodeCount": 4, "nodeIdleTimeBeforeScaleDown": "PT10M"},
        "remoteLoginPortPublicAccess": "Disabled",
        "enableNodePublicIp": True,
    }
    machines = now()
    assert (machines.exists, machines.state, machines.problem) == (True, "", "")
    assert (machines.size, machines.min_nodes, machines.max_nodes) == (T4, 0, 4)
    assert CLUSTER.list_nodes(OPTIONS) == []

    CLUSTER.delete(OPTIONS)
    assert not now().exists
    deleted = next(request for request in service.server.requests if request.method == "DELETE")
    assert deleted.query["underlyingResourceAction"] == "Delete"


def test_nodes_have_a_state_and_a_price(service):
    CLUSTER.create(OPTIONS, SPEC)
    assert now().cost_per_hour == 0.5
    assert now().price_source.startswith("Retail Prices API, westeurope, ")
    service.bring_up("gpu", 6)
    nodes = service.computes["vision", "ws1", "gpu"].nodes
    for node, state in zip(nodes, ("idle", "running", "preparing", "unusable", "leaving", "preempted"), strict=True):
        node["nodeState"] = state
    listed = CLUSTER.list_nodes(OPTIONS)
    assert [node.state for node in listed] == ["up", "up", "starting", "down", "starting", "down"]
    assert [node.billed for node in listed] == [True] * 5 + [False]
    assert [node.cost_per_hour for node in listed] == [0.5] * 5 + [None]
    assert all(node.detail for node in listed if node.state == "down")


def test_subscriptions_workspaces_computes_and_sizes_can_be_chosen(service):
    CLUSTER.create(OPTIONS, SPEC)
    (subscription,) = CLUSTER.list_choices("subscription_id", {})
    assert (subscription.value, subscription.label) == (SUBSCRIPTION, "Research")
    with pytest.raises(InvalidSpec, match="has no subscription_id"):
        CLUSTER.list_choices("workspace", {})
    settings.change(subscription_id=SUBSCRIPTION)
    rows = CLUSTER.list_choices("workspace", {})
    assert [(row.value, row.detail, row.sets) for row in rows] == [
        ("talk", "speech, westeurope", {"resource_group": "speech"}),
        ("ws1", "vision, westeurope", {"resource_group": "vision"}),
        ("ws2", "vision, eastus", {"resource_group": "vision"}),
    ]
    workspace = {"workspace": "ws1", "resource_group": "vision"}
    rows = CLUSTER.list_choices("compute", workspace)
    assert [(row.value, row.detail) for row in rows] == [("gpu", f"{T4}, 0 to 4 nodes")]
    sizes = {row.value: row.detail for row in CLUSTER.list_choices("vm_size", {})}
    assert sizes[T4] == "1 × T4"
    assert "Standard_NC24rs_v3" not in sizes
    assert CLUSTER.list_choices("experiment", workspace) == []
    assert now(dataclasses.replace(OPTIONS, subscription_id="")).exists


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workspace", "nowhere"),
        ("resource_group", "nowhere"),
        ("subscription_id", "99999999-2222-3333-4444-555555555555"),
    ],
)
def test_a_wrong_name_is_reported_with_its_option(service, field, value):
    with pytest.raises(InvalidSpec, match=value) as caught:
        now(dataclasses.replace(OPTIONS, **{field: value}))
    assert (caught.value.field, bool(caught.value.hint)) == (field, True)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_nodes": 0}, "max_nodes"),
        ({"min_nodes": 3, "max_nodes": 2}, "min_nodes"),
        ({"idle_seconds": 5}, "idle_seconds"),
    ],
)
def test_the_fields_of_a_new_compute_cluster_are_checked(fields, field):
    with pytest.raises(InvalidSpec) as caught:
        ComputeSpec(T4, **fields)
    assert caught.value.field == field


def test_a_retired_size_is_refused_before_a_request(service):
    with pytest.raises(InvalidSpec, match=r"Standard_NC6s_v3 was retired on 2025-09-30\. Use Standard_NC40ads_H100_v5"):
        CLUSTER.create(OPTIONS, ComputeSpec("nc6s_v3"))
    assert not [request for request in service.server.requests if request.method == "PUT"]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_quota_is_reported_although_azure_accepted_the_request(service, monkeypatch, is_late):
    service.without_quota.add(A100)
    spec = ComputeSpec("NC24ads_A100_v4")
    if is_late:
        monkeypatch.setattr(cluster, "WATCH_SECONDS", 0.0)
        service.seconds = 600
        CLUSTER.create(OPTIONS, spec)
        assert now().state == "creating"
        service.settle()
    else:
        with pytest.raises(ClusterRefused, match="vCPU quota of 0") as caught:
            CLUSTER.create(OPTIONS, spec)
        assert "request more quota" in caught.value.hint
    assert now().exists
    assert "request more quota" in now().problem


@pytest.mark.parametrize(
    ("status", "code", "message", "kind", "hint"),
    [
        (403, "AuthorizationFailed", "The client does not have authorization.", ClusterRefused, "Compute Operator"),
        (409, "ScopeLocked", "The scope is locked.", ClusterRefused, "lock on the resource group"),
        (400, "SkuNotAvailable", "The size is not available in location 'x'.", ClusterRefused, "no capacity"),
        (400, "BadRequest", "VM size Standard_X is not supported in x.", ClusterRefused, "size that the region offers"),
        (400, "ClusterMinNodesExceedCoreQuota", "The vCPU quota is 4.", ClusterRefused, "quota"),
        (418, "Odd", "I am a teapot.", AzureRefused, ""),
    ],
)
def test_what_azure_rejects_has_a_remedy(service, status, code, message, kind, hint):
    service.refuse.append(("PUT", refusal(status, code, message)))
    with pytest.raises(kind) as caught:
        CLUSTER.create(OPTIONS, SPEC)
    assert hint in caught.value.hint


def test_only_a_new_name_is_created_and_only_an_existing_compute_cluster_deleted(service):
    with pytest.raises(ClusterRefused) as caught:
        CLUSTER.delete(OPTIONS)
    assert caught.value.code == "azureml-compute-not-found"
    CLUSTER.create(OPTIONS, ComputeSpec(T4, max_nodes=4, min_nodes=2))
    with pytest.raises(ClusterRefused) as caught:
        CLUSTER.create(OPTIONS, SPEC)
    assert caught.value.code == "azureml-compute-exists"


def test_serverless_nodes_are_neither_shown_nor_deleted(signed_in):
    options = AzureMLOptions(subscription_id=SUBSCRIPTION, resource_group="vision", workspace="ws1", vm_size="x")
    assert (CLUSTER.list_nodes(options), CLUSTER.get_machines(options)) == ([], None)
    for change in (CLUSTER.delete, lambda options: CLUSTER.create(options, SPEC)):
        with pytest.raises(ClusterRefused) as caught:
            change(options)
        assert caught.value.code == "azureml-serverless"


def test_without_a_sign_in_the_error_says_how_to_sign_in(azure):
    Computes(azure.server, azure.login)
    settings.change(credential="default")
    with pytest.raises(NotSignedIn) as caught:
        now()
    assert caught.value.hint
