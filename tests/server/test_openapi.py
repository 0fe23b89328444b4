"""The OpenAPI description is the handlers', and a running server answers as it says, whatever it is asked."""

import shutil

import jsonschema
import pytest
import schemathesis
from azure.identity import DeviceCodeCredential
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import one_of
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from distdl_jupyter.api import BASE_PATH, openapi
from distdl_jupyter.azure import identity
from distdl_jupyter.azure import settings as settings_of_azure
from distdl_jupyter.core.store import JobStore, is_id
from tests.selection import few_or_all
from tests.server.running import TOKEN, serve
from tests.standin.fixtures import cloud_file
from tests.widgets import recorded

DOCUMENT = openapi.create_document()


def _easier(schema):
    """Return a schema without tuples, which schemathesis puts wrongly into an answer's; ``conforms`` checks them."""
    if isinstance(schema, list):
        return [_easier(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    tuples = {"prefixItems", "items"} if "prefixItems" in schema else set()
    return {name: _easier(one) for name, one in schema.items() if name not in tuples}


#: Without what is said of the token: every request here has it (who may ask has tests of its own).
SCHEMA = schemathesis.openapi.from_dict(_easier({name: one for name, one in DOCUMENT.items() if name != "security"}))
#: What may be asked of each operation, as the schema allows it and otherwise; a test of each has a name of its own.
OPERATIONS = {
    operation.label: one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))
    for operation in (found.ok() for found in SCHEMA.get_all_operations())
}
#: A schema cannot say which requests are right beyond their form: a name that is taken is not.
LEFT_OUT = ["positive_data_acceptance"]


def test_a_request_may_leave_out_fields_and_a_response_has_all():
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["NewJob"]["required"] == ["code"]
    assert schemas["JobRow"]["required"] == list(schemas["JobRow"]["properties"])


def test_a_query_parameter_that_may_be_left_out_has_the_type_of_its_value():
    operation = DOCUMENT["paths"][f"{BASE_PATH}/jobs/{{id}}/log"]["get"]
    schemas = {parameter["name"]: parameter["schema"] for parameter in operation["parameters"]}
    assert schemas["before"]["type"] == "integer"


def test_every_answer_names_its_errors():
    for path, verbs in DOCUMENT["paths"].items():
        for verb, operation in verbs.items():
            if verb == "parameters":
                continue
            assert operation["summary"].endswith("."), (verb, path)
            assert operation["responses"]["default"]["content"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("openapi")


@pytest.fixture(scope="module")
def running(folders):
    """One server for all cases; its data is that of the test that asks."""
    (folders / "root").mkdir()
    with serve(folders / "root", traits={"keep_alive_seconds": 0.2}) as server:
        yield server


@pytest.fixture(scope="module")
def stories(folders):
    """Jobs of every kind, written once."""
    told = [recorded.tell(kind, JobStore(folders)) for kind in ("completed", "failed")]
    for story in told:
        story.close()
        (story.folder.outputs / "model.pt").write_text("weights")
    return folders / "jobs"


@pytest.fixture(autouse=True)
def no_azure(tmp_path, running, monkeypatch):
    """No case asks Azure: its cloud is where nobody answers. None signs out who runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    settings_of_azure.change(cloud=str(cloud_file(tmp_path, "https://127.0.0.1:1")))
    # azure-identity leaves the port of a browser's response open, which the end of the tests would report.
    monkeypatch.setattr("azure.identity.InteractiveBrowserCredential", DeviceCodeCredential)
    yield
    identity.cancel()


@pytest.fixture
def ids(stories, distdl_home):
    shutil.copytree(stories, distdl_home / "jobs", copy_function=shutil.copy)
    return sorted(path.name for path in stories.iterdir())


@pytest.mark.fault("handlers", "every request, valid by the schema or not, gets the documented response, never a 500")
@pytest.mark.parametrize("label", OPERATIONS)
def test_the_server_answers_as_the_file_says(label, running, ids):
    """Ids of the right form are those of jobs that are there."""

    @given(OPERATIONS[label])
    @settings(
        max_examples=few_or_all(6, 12),
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
        deadline=None,
    )
    def holds(case):
        made_up = case.path_parameters.get("id")
        if isinstance(made_up, str) and is_id(made_up) and case.method != "DELETE":
            case.path_parameters["id"] = ids[len(made_up) % len(ids)]
        answer = case.call_and_validate(
            base_url=running.url,
            headers={"Authorization": f"token {TOKEN}", "Accept": "application/json"},
            excluded_checks=CHECKS.get_by_names(LEFT_OUT),
            timeout=60,
        )
        conforms(case, answer)

    holds()


def conforms(case, answer):
    """Hold an answer in JSON against the schema of its status, tuples included."""
    verb = DOCUMENT["paths"][case.operation.path].get(case.method.lower(), {})  # a verb that is not there is 405
    content = verb.get("responses", {}).get(str(answer.status_code), {}).get("content", {}).get("application/json")
    if content is not None and answer.headers["content-type"][0].startswith("application/json"):
        schema = {**content["schema"], "components": DOCUMENT["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json())
