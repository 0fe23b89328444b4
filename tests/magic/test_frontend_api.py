"""What a page learns from a real kernel about a cell, without a trace in the notebook."""

import json

PAGE = "__import__('distdl_jupyter.magic.frontend_api', fromlist=['page'])"


def asked(kernel, function, **question):
    """Ask as the page does: a user expression of a silent request."""
    expression = f"{PAGE}.{function}({json.dumps(question)!r})"
    reply = kernel.client.execute(
        "", silent=True, store_history=False, user_expressions={"answer": expression}, reply=True, timeout=60
    )
    found = reply["content"]["user_expressions"]["answer"]
    assert found["status"] == "ok", found
    return found["data"]["application/json"]


CELL = (
    "%%distributed -p 2 -b horovod-gloo --name digits --wait\nimport horovod.torch as hvd\nhvd.init()\ndata.sum() * lr"
)


def test_the_form_knows_what_the_cell_takes_from_the_notebook(plain_kernel):
    plain_kernel.ok("import numpy as np\ndata = np.arange(1000.0)\nlr = 0.25")
    shown = asked(plain_kernel, "form", code=CELL, cell_id="c1", execution_count=2)
    assert [item["name"] for item in shown["captured"]["items"]] == ["data", "lr"]
    chosen = shown["chosen"]
    assert (chosen["name"], chosen["distributed_backend"]) == ("digits", "horovod-gloo")
    assert chosen["process_count_per_node"] == 2
    assert shown["checks"]["level"] != "error", shown["checks"]
    assert shown["title"] == {"function": "", "cell": 2, "file": ""}
    assert shown["cell"].splitlines()[0] == "%%distributed -N 1 -p 2 -b horovod-gloo --name digits --wait"
    # The magics are there now, and no cell was counted.
    ran = plain_kernel.ok("%dist_config process_count_per_node=3")
    assert "process_count_per_node = 3" in ran.text
    assert plain_kernel.ok("len(In)").value["text/plain"] == "4"


def test_the_kernels_own_defaults_count_where_the_line_says_nothing(kernel):
    kernel.ok("%dist_config process_count_per_node=3 distributed_backend=plain")
    chosen = asked(kernel, "form", code="1 + 1")["chosen"]
    assert (chosen["process_count_per_node"], chosen["distributed_backend"]) == (3, "plain")
    kernel.ok("%load_ext distdl_jupyter")
    assert asked(kernel, "form", code="1 + 1")["chosen"]["process_count_per_node"] == 3


def test_a_secret_is_kept_in_the_kernel_and_reaches_the_ranks(kernel):
    assert asked(kernel, "keep", MY_TOKEN="s3cret") == {"kept": ["MY_TOKEN"]}
    kernel.ok("%%distributed -p 1 -b plain -o job --env MY_TOKEN\nimport os\nlen(os.environ['MY_TOKEN'])")
    assert kernel.ok("job.result()").value["text/plain"] == "6"
    assert "s3cret" not in kernel.ok("repr(job.spec)").value["text/plain"]
    assert "s3cret" not in kernel.ok("str(In)").value["text/plain"]
