"""Compute clusters of Azure ML: seen, made, scaled, unmade, with what Azure refuses told as a sentence."""

import dataclasses

import pytest

from distdl_jupyter.azure import settings
from distdl_jupyter.clusters.azureml import compute
from distdl_jupyter.clusters.azureml.compute import ComputeClusters, ComputeSpec
from distdl_jupyter.clusters.azureml.options import AzureMLOptions
from distdl_jupyter.clusters.local import LocalCluster
from distdl_jupyter.core.errors import AzureRefused, ClusterRefused, InvalidSpec, NotSignedIn
from tests.standin.computes import SUBSCRIPTION, Computes
from tests.standin.prices import Prices
from tests.standin.server import refusal

OPTIONS = AzureMLOptions(subscription_id=SUBSCRIPTION, resource_group="vision", workspace="ws1", compute="gpu")
T4 = ComputeSpec("Standard_NC4as_T4_v3", max_nodes=4)


class Only(ComputeClusters, LocalCluster):
    """Nothing but the machines."""

    name = "azureml"
    Options = AzureMLOptions


CLUSTER = Only()


@pytest.fixture(autouse=True)
def looked_anew():
    compute.forget()
    yield
    compute.forget()


@pytest.fixture
def service(signed_in):
    Prices(signed_in.server)
    return Computes(signed_in.server, signed_in.login)


def now(options=OPTIONS):
    compute.forget()
    return CLUSTER.machines(options)


def test_a_compute_cluster_is_made_scaled_and_unmade(service):
    assert (now().exists, CLUSTER.nodes(OPTIONS)) == (False, [])
    CLUSTER.create(OPTIONS, T4)
    body = service.server.asked("/computes/gpu$")[-1]
    made = next(one for one in service.server.requests if one.method == "PUT")
    properties = made.json["properties"]
    assert (made.json["location"], made.json["identity"]["type"]) == ("westeurope", "SystemAssigned")
    assert (properties["computeType"], properties["disableLocalAuth"]) == ("AmlCompute", True)
    assert properties["properties"] == {
        "osType": "Linux",
        "vmSize": "Standard_NC4as_T4_v3",
        "vmPriority": "Dedicated",
        "scaleSettings": {"minNodeCount": 0, "maxNodeCount": 4, "nodeIdleTimeBeforeScaleDown": "PT10M"},
        "remoteLoginPortPublicAccess": "Disabled",
        "enableNodePublicIp": True,
    }
    found = now()
    assert (found.exists, found.state, found.problem) == (True, "", "")
    assert (found.size, found.min_nodes, found.max_nodes) == ("Standard_NC4as_T4_v3", 0, 4)
    assert "nodes stop after 10 min without a job" in found.detail
    assert CLUSTER.nodes(OPTIONS) == []

    assert CLUSTER.scale(OPTIONS, 2) is OPTIONS
    CLUSTER.keep_up(OPTIONS, 1)
    assert (now().min_nodes, now().max_nodes) == (1, 2)
    assert [node.name for node in CLUSTER.nodes(OPTIONS)] == ["tvmps_00_d"]
    (warning,) = CLUSTER.afterwards(OPTIONS)
    assert (
        warning.text == "1 node of gpu keeps running without jobs and costs money. Set min_nodes=0 to stop idle nodes."
    )
    CLUSTER.keep_up(OPTIONS, 0)
    assert CLUSTER.afterwards(OPTIONS) == []

    CLUSTER.delete(OPTIONS)
    assert not now().exists
    ended = next(one for one in service.server.requests if one.method == "DELETE")
    assert ended.query["underlyingResourceAction"] == "Delete"
    assert body.query["api-version"]


def test_nodes_say_what_they_do_and_whether_they_cost(service):
    CLUSTER.create(OPTIONS, T4)
    service.bring_up("gpu", 6)
    nodes = service.computes["vision", "ws1", "gpu"].nodes
    for node, state in zip(nodes, ("idle", "running", "preparing", "unusable", "leaving", "preempted"), strict=True):
        node["nodeState"] = state
    nodes[1]["runId"] = "brave_ear_1"
    compute.forget()
    found = CLUSTER.nodes(OPTIONS)
    assert [node.state for node in found] == ["up", "up", "starting", "down", "starting", "down"]
    assert [node.billed for node in found] == [True] * 5 + [False]
    assert found[1].detail == "runs brave_ear_1"
    assert (found[0].gpus, found[0].gpu_name, found[0].cores) == (1, "T4", 4)
    assert all(node.detail for node in found if node.state == "down")
    assert CLUSTER.max_node_count(OPTIONS, len(found)) == 6


def test_what_nodes_cost_is_known_where_the_prices_api_says_it(service):
    CLUSTER.create(OPTIONS, T4)
    service.bring_up("gpu", 2)
    service.bring_up("gpu", 3, "preempted")
    assert now().cost_per_hour == 0.5
    assert now().price_source.startswith("Retail Prices API, westeurope, ")
    assert [node.cost_per_hour for node in CLUSTER.nodes(OPTIONS)] == [0.5, 0.5, None]


def test_a_status_is_cached_for_some_seconds(service, monkeypatch):
    monkeypatch.setattr(compute, "WATCH_SECONDS", 0.0)
    service.seconds = 600
    CLUSTER.create(OPTIONS, T4)
    assert now().state == "creating"
    service.settle()
    assert now().state == ""
    CLUSTER.nodes(OPTIONS)
    before = len(service.server.asked("/computes"))
    for _ in range(20):
        CLUSTER.nodes(OPTIONS), CLUSTER.machines(OPTIONS), CLUSTER.max_node_count(OPTIONS, 0)
    assert len(service.server.asked("/computes")) == before


def test_choices_lead_from_a_subscription_to_a_compute(service):
    CLUSTER.create(OPTIONS, T4)
    (subscription,) = CLUSTER.choices("subscription_id", {})
    assert (subscription.value, subscription.label) == (SUBSCRIPTION, "Research")
    with pytest.raises(InvalidSpec, match="subscription_id is missing"):
        CLUSTER.choices("workspace", {})
    given = {"subscription_id": SUBSCRIPTION}
    found = CLUSTER.choices("workspace", given)
    assert [(one.value, one.detail, one.sets) for one in found] == [
        ("talk", "speech, westeurope", {"resource_group": "speech"}),
        ("ws1", "vision, westeurope", {"resource_group": "vision"}),
        ("ws2", "vision, eastus", {"resource_group": "vision"}),
    ]
    assert [one.value for one in CLUSTER.choices("resource_group", given)] == ["speech", "vision"]
    with pytest.raises(InvalidSpec, match="resource_group is missing"):
        CLUSTER.choices("compute", given)
    given |= {"workspace": "ws1", "resource_group": "vision"}
    assert [(one.value, one.detail) for one in CLUSTER.choices("compute", given)] == [
        ("gpu", "Standard_NC4as_T4_v3, 0 to 4 nodes"),
    ]
    sizes = {one.value: one.detail for one in CLUSTER.choices("vm_size", {})}
    assert sizes["Standard_NC4as_T4_v3"] == "1 × T4"
    assert "Standard_NC24rs_v3" not in sizes
    assert CLUSTER.choices("experiment", given) == []


def test_the_subscription_of_the_settings_is_the_usual_one(service):
    settings.change(subscription_id=SUBSCRIPTION)
    options = dataclasses.replace(OPTIONS, subscription_id="")
    assert not now(options).exists
    assert len(CLUSTER.choices("workspace", {})) == 3


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        ({"workspace": "nowhere"}, "workspace", "The resource group vision has no workspace nowhere."),
        ({"resource_group": "nowhere"}, "resource_group", "This subscription has no resource group nowhere."),
        ({"subscription_id": "99999999-2222-3333-4444-555555555555"}, "subscription_id",
         "No subscription 99999999-2222-3333-4444-555555555555 is visible to this account."),
    ],
)  # fmt: skip
def test_a_wrong_way_to_a_compute_is_told_by_its_part(service, options, field, says):
    with pytest.raises(InvalidSpec) as caught:
        now(dataclasses.replace(OPTIONS, **options))
    assert (caught.value.field, caught.value.message) == (field, says)
    assert caught.value.hint


def wanted(**more):
    return ComputeSpec(**{"vm_size": "Standard_NC4as_T4_v3", **more})


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"max_nodes": 0}, "max_nodes", "max_nodes is 0, but must be an integer of at least 1."),
        ({"min_nodes": 3, "max_nodes": 2}, "min_nodes", "min_nodes is 3, but max_nodes is 2."),
        ({"idle_seconds": 5}, "idle_seconds", "idle_seconds is 5, but must be an integer of at least 60."),
    ],
)
def test_what_is_wanted_is_checked_where_it_is_said(given, field, says):
    with pytest.raises(InvalidSpec) as caught:
        wanted(**given)
    assert (caught.value.field, caught.value.message) == (field, says)


def test_a_retired_size_is_refused_with_its_successor(service):
    with pytest.raises(InvalidSpec, match=r"Standard_NC6s_v3 was retired on 2025-09-30\. Use Standard_NC40ads_H100_v5"):
        CLUSTER.create(OPTIONS, wanted(vm_size="nc6s_v3"))
    assert not [one for one in service.server.requests if one.method == "PUT"]


def test_a_name_that_azure_does_not_take_is_refused_before(service):
    with pytest.raises(InvalidSpec, match="'ab' is not a valid name for a compute cluster") as caught:
        CLUSTER.create(dataclasses.replace(OPTIONS, compute="ab"), T4)
    assert caught.value.field == "compute"


def test_a_name_that_is_taken_is_said_so(service):
    CLUSTER.create(OPTIONS, T4)
    with pytest.raises(ClusterRefused, match="The workspace ws1 already has a compute target named gpu"):
        CLUSTER.create(OPTIONS, T4)


def test_a_quota_shows_though_azure_accepted_first(service):
    service.without_quota.add("Standard_NC24ads_A100_v4")
    with pytest.raises(ClusterRefused, match="vCPU quota of 0") as caught:
        CLUSTER.create(OPTIONS, wanted(vm_size="NC24ads_A100_v4"))
    assert caught.value.hint.startswith("Use fewer nodes or another size, or request more quota")
    found = now()
    assert found.exists
    assert "request more quota" in found.problem


def test_a_failure_that_comes_later_is_told_with_the_machines(service, monkeypatch):
    monkeypatch.setattr(compute, "WATCH_SECONDS", 0.0)
    service.seconds = 600
    service.without_quota.add("Standard_NC24ads_A100_v4")
    CLUSTER.create(OPTIONS, wanted(vm_size="Standard_NC24ads_A100_v4"))
    assert now().state == "creating"
    service.settle()
    assert "request more quota" in now().problem


@pytest.mark.parametrize(
    ("answer", "kind", "hint"),
    [
        (refusal(403, "AuthorizationFailed", "The client does not have authorization to perform action."), AzureRefused,
         "Ask the owner for the role AzureML Compute Operator, or sign in with another account."),
        (refusal(409, "ScopeLocked", "The scope cannot perform write operation because it is locked."), ClusterRefused,
         "Ask for the lock on the resource group to be removed, because it prevents changes."),
        (refusal(400, "SkuNotAvailable", "The requested size is not available in location 'westeurope'."),
         ClusterRefused, "Azure has no capacity for this size in the region now. Try again later"),
        (refusal(400, "ClusterMinNodesExceedCoreQuota", "The specified subscription has a total vCPU quota of 4."),
         ClusterRefused, "Use fewer nodes or another size"),
        (refusal(418, "Odd", "I am a teapot."), AzureRefused, ""),
    ],
)  # fmt: skip
def test_what_azure_refuses_says_what_helps(service, answer, kind, hint):
    service.refuse.append(("PUT", answer))
    with pytest.raises(kind) as caught:
        CLUSTER.create(OPTIONS, T4)
    assert caught.value.hint.startswith(hint)
    assert "management" not in caught.value.message


def test_a_size_that_the_region_has_not_leads_to_the_list(service):
    with pytest.raises(ClusterRefused, match="is not supported in westeurope") as caught:
        CLUSTER.create(OPTIONS, wanted(vm_size="Standard_NC96ads_A100_v4"))
    assert caught.value.hint.startswith("Choose a size that the region offers")


def test_scaling_asks_for_what_is_possible(service):
    with pytest.raises(ClusterRefused, match="has no compute cluster named gpu"):
        CLUSTER.scale(OPTIONS, 2)
    CLUSTER.create(OPTIONS, wanted(max_nodes=4, min_nodes=2))
    CLUSTER.scale(OPTIONS, 1)
    assert (now().min_nodes, now().max_nodes) == (1, 1)
    with pytest.raises(InvalidSpec, match="gpu can have at most 1 node"):
        CLUSTER.keep_up(OPTIONS, 2)
    with pytest.raises(InvalidSpec, match="node_count of a compute cluster must be at least 1"):
        CLUSTER.scale(OPTIONS, 0)


def test_serverless_nodes_are_neither_shown_nor_changed(signed_in):
    options = AzureMLOptions(subscription_id=SUBSCRIPTION, resource_group="vision", workspace="ws1", vm_size="x")
    assert (CLUSTER.nodes(options), CLUSTER.machines(options), CLUSTER.afterwards(options)) == ([], None, [])
    with pytest.raises(ClusterRefused, match="Serverless nodes are created for each job"):
        CLUSTER.scale(options, 2)


def test_without_a_sign_in_it_says_how(azure):
    Computes(azure.server, azure.login)
    settings.change(credential="default")
    with pytest.raises(NotSignedIn) as caught:
        now()
    assert caught.value.hint
