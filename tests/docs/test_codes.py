"""Every error, finding and note has a stable code in kebab-case, and one code has one remedy."""

import re
import sys
from collections import defaultdict

import pytest

from distdl_jupyter.api.source import restore_error
from distdl_jupyter.core import errors
from distdl_jupyter.core.errors import AzureRefused, DistDLError, InvalidSpec, JobNotFound, LaunchFailed
from distdl_jupyter.server.handler import to_api_error
from tests.docs.blocks import DOCS

sys.path.insert(0, str(DOCS))
import codes

KEBAB = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@pytest.fixture(scope="module")
def entries():
    return codes.entries()


def test_all_codes_are_kebab_case(entries):
    known = {entry.code for entry in entries} | set(codes.class_codes().values())
    assert len(known) > 100
    assert [code for code in sorted(known) if not KEBAB.fullmatch(code)] == []


def test_every_error_that_is_raised_has_a_code_of_its_own(entries):
    general = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DistDLError)}
    without = [entry for entry in entries if entry.message and not entry.explicit and entry.code in general]
    assert [f"{entry.path}:{entry.line} {entry.message}" for entry in without] == []


def test_a_code_has_not_two_remedies_in_different_modules(entries):
    remedies = defaultdict(lambda: defaultdict(set))
    for entry in entries:
        if entry.explicit and entry.code not in codes.class_codes().values():
            remedies[entry.code][entry.remedy].add(entry.path)
    wrong = {
        code: dict(by_remedy)
        for code, by_remedy in remedies.items()
        if len({*filter(None, by_remedy)}) > 1 and len(set.union(*by_remedy.values())) > 1
    }
    assert wrong == {}


def test_an_error_has_the_code_of_its_class_or_its_own():
    assert (InvalidSpec("No.").code, JobNotFound("No.").code) == ("invalid-spec", "job-not-found")
    error = InvalidSpec("No.", field="gpus", code="gpus-missing", hint="Ask for fewer.")
    assert error.to_json() == {
        "type": "InvalidSpec", "code": "gpus-missing", "message": "No.", "hint": "Ask for fewer.", "field": "gpus",
        "output": "",
    }  # fmt: skip
    assert InvalidSpec("No.").code == "invalid-spec"
    refused = AzureRefused("No.", status=409, azure_code="ScopeLocked")
    assert (refused.code, refused.azure_code) == ("azure-refused", "ScopeLocked")


@pytest.mark.parametrize("kind", [DistDLError, InvalidSpec, LaunchFailed])
def test_the_code_travels_to_a_page_and_between_processes(kind):
    error = kind("No.", code="no-room")
    assert to_api_error(error, 400).code == "no-room"
    assert restore_error(error.to_json()).code == "no-room"
    assert to_api_error(ZeroDivisionError(), 500).code == "internal-error"
