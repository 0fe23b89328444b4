"""What a server pays for the extension: no framework is loaded with it."""

import subprocess
import sys

HEAVY = {
    "torch", "plotly", "azure", "pandas", "numpy", "ray", "pyspark", "tensorflow", "horovod", "ipywidgets", "IPython",
    "cloudpickle", "pydantic", "matplotlib", "obstore",
}  # fmt: skip


def loaded_by(code, *, whole=False):
    name = "name" if whole else "name.partition('.')[0]"
    answer = subprocess.run([sys.executable, "-c", f"import sys\nbefore = set(sys.modules)\n{code}\n"
                             f"print(*{{{name} for name in set(sys.modules) - before}})"],
                            capture_output=True, text=True, check=True, timeout=120)  # fmt: skip
    return set(answer.stdout.split())


def test_loading_the_extension_loads_no_framework():
    found = loaded_by(
        "import jupyter_server.serverapp\nimport distdl_jupyter\n"
        "point = distdl_jupyter._jupyter_server_extension_points()[0]\n"
        "assert point['app'].__name__ == 'DistDLApp'"
    )
    assert found & HEAVY == set()


def test_a_server_with_jobs_and_clusters_loads_no_framework(tmp_path):
    """Also not by answering: a whole server lives and answers in a process of its own."""
    code = f"""
import pathlib
from tests.server.running import serve
root = pathlib.Path({str(tmp_path)!r})
with serve(root) as server:
    id_ = server.submit("1 + 1")
    server.until_ended(id_)
    server.get("/jobs")
    server.get("/clusters")
    server.get(f"/jobs/{{id_}}")
    server.get("/compare", ids=id_)
    server.get("/plugins")
"""
    assert loaded_by(code) & HEAVY == set()
