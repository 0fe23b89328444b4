"""What a page learns from a real kernel about a cell, without a trace in the notebook."""

import uuid

LOAD = "get_ipython().extension_manager.load_extension('distdl_jupyter')"


def asked(kernel, ask, **given):
    """Ask as the page does: a comm that is opened with the request and closed with the answer."""
    client = kernel.client
    client.execute(LOAD, silent=True, store_history=False, reply=True, timeout=60)
    content = {"comm_id": uuid.uuid4().hex, "target_name": "distdl-jupyter", "data": {"call": ask, "arguments": given}}
    opening = client.session.msg("comm_open", content)
    client.shell_channel.send(opening)
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "comm_close" and message["parent_header"]["msg_id"] == opening["header"]["msg_id"]:
            answer = message["content"]["data"]
            assert "error" not in answer, answer
            return answer["value"]


CELL = (
    "%%distributed -p 2 -b horovod-gloo --name digits --wait\nimport horovod.torch as hvd\nhvd.init()\ndata.sum() * lr"
)


def test_the_form_knows_what_the_cell_takes_from_the_notebook(plain_kernel):
    plain_kernel.ok("import numpy as np\ndata = np.arange(1000.0)\nlr = 0.25")
    shown = asked(plain_kernel, "form.state", request={"code": CELL, "cell_id": "c1", "execution_count": 2})
    assert [item["name"] for item in shown["captured"]] == ["data", "lr"]
    chosen = shown["values"]
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
    chosen = asked(kernel, "form.state", request={"code": "1 + 1"})["values"]
    assert (chosen["process_count_per_node"], chosen["distributed_backend"]) == (3, "plain")
    kernel.ok("%load_ext distdl_jupyter")
    assert asked(kernel, "form.state", request={"code": "1 + 1"})["values"]["process_count_per_node"] == 3


def test_a_secret_is_kept_in_the_kernel_and_reaches_the_ranks(kernel):
    assert asked(kernel, "form.keep", variables={"MY_TOKEN": "s3cret"}) == {"kept": ["MY_TOKEN"]}
    kernel.ok("%%distributed -p 1 -b plain -o job --env MY_TOKEN\nimport os\nlen(os.environ['MY_TOKEN'])")
    assert kernel.ok("job.result()").value["text/plain"] == "6"
    assert "s3cret" not in kernel.ok("repr(job.spec)").value["text/plain"]
    assert "s3cret" not in kernel.ok("str(In)").value["text/plain"]
