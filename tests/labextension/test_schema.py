"""The pages' types are those of the OpenAPI file, and with it those of Python's dataclasses (``make schema``)."""

import json
import subprocess
from pathlib import Path

HERE = Path(__file__).parents[2] / "labextension"


def test_the_types_are_up_to_date(tmp_path):
    command = json.loads((HERE / "package.json").read_text())["scripts"]["schema"]
    made = tmp_path / "schema.ts"
    written = command.replace("src/schema.ts", str(made)).split()
    subprocess.run([HERE / "node_modules/.bin" / written[0], *written[1:]], cwd=HERE, check=True, capture_output=True)
    assert made.read_text() == (HERE / "src" / "schema.ts").read_text()


def test_the_pages_find_what_they_are_told_by_name():
    text = (HERE / "src" / "schema.ts").read_text()
    for name in ("JobRow", "JobDetail", "Card", "Curve", "LogChanges", "Cluster", "Comparison", "ApiError", "Batch"):
        assert f"export type {name} = components['schemas']['{name}'];" in text
    assert ": any" not in text
