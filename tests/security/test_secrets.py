"""Secrets are planted everywhere in a real job; then all that was written, answered and shown is searched for them."""

import json
import os
import sys
import time

import pytest

from distdl_jupyter import jobs
from distdl_jupyter.core.errors import DistDLError, InvalidSpec, JobFailed
from distdl_jupyter.jobs import client
from tests.conftest import wait_for
from tests.processes import distdl
from tests.security import planted

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(sys.platform != "linux", reason="/proc lists processes")]
TIMEOUT = 240

CELL = f'''
import base64, json, os, sys, time, urllib.parse, warnings
import distdl_jupyter

github = "{planted.IN_CODE}"
values = [os.environ[name] for name in ("HF_TOKEN", "MY_PASSWORD", "DATABASE_URL", "WANDB_API_KEY")]
assert len(api_password) == 22
for value in [*values, github]:
    print("plain", value)
    print("quoted", urllib.parse.quote(value, safe=""), repr(value), ascii(value), file=sys.stderr)
for value in values:
    print("base64", base64.b64encode(value.encode()).decode())
    sys.stdout.write(f"\\r 10% {{value}}\\r 20% {{value}}")
    sys.stdout.flush()
    time.sleep(0.3)
    sys.stdout.write("\\n")
    print("json", json.dumps({{"value": value}}))
    for piece in ("in pieces ", value[:5], value[5:], "\\n"):
        sys.stdout.write(piece)
        sys.stdout.flush()
        time.sleep(0.3)
    # Somewhere in it a long line is cut.
    sys.stdout.write("x" * 700_000 + value + "y" * 600_000 + value + "\\n")
print("curl https://a.blob.core.windows.net/c/f?{planted.IN_URL}")
print("got {planted.JWT} from login")
for line in {planted.KEY!r}.splitlines():
    print(line, flush=True)
    time.sleep(0.05)
print("password={planted.IN_ARGUMENT}", "that was all")
distdl_jupyter.log(step=1, **{{"loss": 1.0, values[0]: 2.0}})
distdl_jupyter.progress(1, 2, values[0])
'''
RETURNS = CELL + "(values, {'token': github, 'where': values[2]})"
RAISES = (
    CELL
    + """
def connect(address, credential):
    local = {"password": credential, "url": address}
    try:
        raise ConnectionError(f"no way to {address} with {credential!r}")
    except ConnectionError as error:
        raise RuntimeError(f"gave up: {values}") from error

connect(values[2], values[1])
"""
)


def plant(kernel, end, magic="-p 2 -b torch"):
    kernel.ok("import os\n" + "\n".join(f"os.environ[{n!r}] = {v!r}" for n, v in planted.INHERITED.items()))
    kernel.ok(f"api_password = {planted.IN_VARIABLE!r}")
    flags = " ".join(f"--env {name}='{value}'" for name, value in planted.VARIABLES.items())
    return kernel.run(f"%%distributed {magic} -o job {flags} --wait\n{end}")


def shown_by(kernel, ran):
    """Return all that a front end gets: text, bundles, errors."""
    # The cell's value is the user's own, and the user's own kernel shows it.
    parts = [ran.text, ran.error, ran.traceback, json.dumps(ran.shown)]
    for line in ("job", "job.view()", "job.spec", "list(job.logs())", "%dist_jobs", "job.metrics()", "job.stacks"):
        more = kernel.run(line)
        parts += [more.text, more.error, more.traceback, json.dumps(more.shown), json.dumps(more.value)]
    return "\n".join(parts)


@pytest.mark.parametrize("end", [RETURNS, RAISES], ids=["returned", "raised"])
def test_a_job_of_a_notebook_leaves_no_secret_anywhere(kernel, distdl_home, end):
    tmp = os.listdir("/tmp")
    ran = plant(kernel, end)
    job = jobs()[0]
    assert job.state.value == ("failed" if end is RAISES else "completed"), job.view().reason
    log = "\n".join(map(str, job.logs()))
    assert log.count("plain •••") == 10, "both ranks printed five of them"
    assert log.count("in pieces •••") == 8
    assert "curl https://a.blob.core.windows.net/c/f?sv=2024-01-01&sig=•••" in log
    assert "password=••• that was all" in log
    assert planted.written_below(distdl_home) == {}
    assert planted.new_in_tmp(tmp) == {}
    assert planted.found_in(shown_by(kernel, ran)) == []


def test_a_script_s_arguments_and_code_stay_out_of_all_views_and_of_the_command_line(server, distdl_home, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        f"import os, sys\nTOKEN = '{planted.IN_CODE}'\nprint(sys.argv, os.environ['HF_TOKEN'])\n"
        f"assert sys.argv[2] == {planted.IN_ARGUMENT!r}\n"
        "sys.exit(f\"bad: {' '.join(sys.argv)} {os.environ['MY_PASSWORD']}\")\n"
    )
    job = client.submit(
        entry_script=str(script), script_params={"--api-token": planted.IN_ARGUMENT, "--lr": 0.1},
        environment_variables=planted.VARIABLES,
    )  # fmt: skip
    with pytest.raises(JobFailed) as caught:
        job.result(TIMEOUT)
    assert "0.1" in str(caught.value)
    assert planted.found_in(f"{caught.value} {caught.value.traceback}") == []
    assert planted.written_below(distdl_home) == {}
    for path in ("", "/result", "/log", "/outputs"):
        assert planted.found_in(server.ask("GET", f"/jobs/{job.id}{path}").text) == [], path
    assert planted.found_in(server.ask("GET", "/jobs").text) == []
    for words in (["show", job.id], ["logs", job.id], ["ls"]):
        printed = distdl(*words).stdout
        assert "train" in printed, words
        assert planted.found_in(printed) == [], words


def test_a_server_answers_and_logs_no_secret(server, distdl_home, caplog):
    code = (
        f"github = '{planted.IN_CODE}'\nimport os\nprint(os.environ['MY_PASSWORD'])\n"
        "raise ValueError(os.environ['DATABASE_URL'])"
    )
    id_ = server.submit(code, options={"environment_variables": planted.VARIABLES})
    server.until_ended(id_)
    texts = [
        server.ask("GET", path).text for path in ("/jobs", f"/jobs/{id_}", f"/jobs/{id_}/result", f"/jobs/{id_}/log")
    ]
    wanted = (
        {"data": {"d": f"https://a.blob.core.windows.net/c?{planted.IN_URL}"}},
        {"environment_variables": {f"A={planted.IN_CODE}": "1"}},
        {"compute_target": planted.IN_CODE},
        {planted.IN_CODE: f"password={planted.IN_ARGUMENT}"},
    )
    refused = [server.ask("POST", "/jobs", json={"code": "1", "options": options}) for options in wanted]
    refused += [
        server.ask("POST", "/jobs", json={"code": "1", planted.IN_CODE: "1"}),
        server.ask("GET", f"/jobs/{planted.IN_CODE}"),
        server.ask("GET", f"/jobs/{id_}/outputs/{planted.IN_CODE}"),
        server.ask("GET", "/jobs", params={planted.IN_CODE: planted.IN_CODE}),
    ]
    assert [answer.status_code for answer in refused][:7] == [400, 400, 400, 400, 400, 404, 404]
    assert planted.found_in("\n".join([*texts, *(answer.text for answer in refused)])) == []
    ours = "\n".join(record.getMessage() for record in caplog.records if "distdl" in record.name)
    assert planted.found_in(ours) == []
    assert planted.written_below(distdl_home) == {}


@pytest.mark.parametrize(
    "backend", [*(pytest.param(name, marks=pytest.mark.full) for name in ("torch", "horovod-gloo")), "horovod-mpi"]
)
def test_no_command_line_shows_a_secret(distdl_home, backend, tmp_path):
    job = client.submit(
        _stay, (str(tmp_path / "go"),), process_count_per_node=2, distributed_backend=backend,
        environment_variables=planted.VARIABLES,
    )  # fmt: skip
    wait_for(lambda: sum("here" in str(line) for line in job.logs()) == 2, TIMEOUT, "both ranks")
    assert [line for line in planted.command_lines() if planted.found_in(line)] == []
    (tmp_path / "go").touch()
    assert job.results(TIMEOUT) == [True, True]
    assert planted.written_below(distdl_home) == {}


def _stay(go):
    print("here", flush=True)
    while not os.path.exists(go):
        time.sleep(0.05)
    return os.environ["MY_PASSWORD"] == "sesame+öffne/dich 7"


def test_what_is_refused_shows_no_secret():
    for options in (
        {"data": {"d": f"https://a.blob.core.windows.net/c?{planted.IN_URL}"}},
        {"environment_variables": {f"A={planted.IN_CODE}": "x"}},
        {"name": f"{planted.IN_CODE}\n"},
        {"compute_target": planted.IN_CODE},
        {"outputs": f"https://a.blob.core.windows.net/c?{planted.IN_URL}"},
        {"max_run_duration_seconds": f"password={planted.IN_ARGUMENT}"},
    ):
        with pytest.raises(DistDLError) as caught:
            client.submit(print, **options)
        assert planted.found_in(f"{caught.value} {caught.value.to_json()}") == [], options
    with pytest.raises(InvalidSpec):
        client.submit(print, environment_variables={"DISTDL_TOKEN": planted.IN_CODE})
