"""The pages' types are made of the OpenAPI file, and with it of Python's dataclasses, by every build."""

from pathlib import Path

HERE = Path(__file__).parents[2] / "labextension"


def test_the_pages_find_what_they_are_told_by_name():
    text = (HERE / "src" / "api" / "schema.ts").read_text()
    for name in ("JobRow", "JobDetail", "Card", "Curve", "LogChanges", "Cluster", "Comparison", "ApiError", "Message"):
        assert f"export type {name} = components['schemas']['{name}'];" in text
    assert ": any" not in text
