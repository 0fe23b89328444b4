"""What a job asks for is read with its files, and refused where other machines cannot get it."""

import pytest

from distdl_jupyter.core import data
from distdl_jupyter.core.errors import InvalidSpec

LOCK = 'lock-version = "1.0"\ncreated-by = "pip"\n\n[[packages]]\nname = "six"\nversion = "1.17.0"\n'


def refused(call, *given):
    with pytest.raises(InvalidSpec) as caught:
        call(*given)
    assert caught.value.hint
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["numpy>=2", " six "], ("numpy>=2", "six")),
        ("numpy>=2 six,rich", ("numpy>=2", "six", "rich")),
        ("", None),
        ([], None),
        (["torch @ git+https://github.com/pytorch/pytorch"], ("torch @ git+https://github.com/pytorch/pytorch",)),
        (["tool @ git+ssh://git@example.org/tool"], ("tool @ git+ssh://git@example.org/tool",)),
    ],
)
def test_packages_are_a_list_or_a_line(given, found):
    assert data.check_packages(given, "pip_packages") == found


@pytest.mark.parametrize("given", [3, [3], {"numpy": "2"}, ["--index-url=https://x"], ["six\nrich"]])
def test_what_is_no_list_of_packages_is_refused(given):
    assert "pip_packages" in refused(data.check_packages, given, "pip_packages")


@pytest.mark.parametrize("address", ["https://me:hunter22@example.org/simple", "https://token@example.org/simple"])
def test_no_password_is_kept_with_a_job(address, tmp_path):
    said = refused(data.check_packages, [f"tool @ {address}/tool.whl"], "pip_packages")
    assert "example.org contains a password" in said
    assert "hunter22" not in said
    (tmp_path / "requirements.txt").write_text(f"--extra-index-url {address}\nsix\n")
    assert "hunter22" not in refused(data.read_requirements, "requirements.txt", tmp_path)


def test_an_address_that_cannot_be_parsed_is_refused_without_its_password():
    said = refused(data.check_packages, ["tool @ https://me:hunt@er22@[example/tool.whl"], "pip_packages")
    assert "contains a password" in said
    assert "er22" not in said


def test_no_token_of_a_conda_channel_is_kept_with_a_job():
    channel = "https://conda.anaconda.org/t/ab-12345678-aaaa/lab"
    said = refused(data.check_packages, [f"{channel}::torch"], "conda_packages")
    assert "conda.anaconda.org contains a password" in said
    assert "12345678" not in said
    assert data.check_packages(["https://conda.anaconda.org/lab::torch"], "conda_packages")


def test_a_file_of_requirements_is_read_with_what_it_includes(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "# what trains\n-r more/base.txt  # for all\nnumpy>=2  # arrays\nsix \\\n  ==1.17.0\n--extra-index-url https://example.org/simple\n"
    )
    (tmp_path / "more" / "base.txt").write_text("--requirement=../requirements.txt\nrich")
    assert data.read_requirements("requirements.txt", tmp_path) == (
        "rich\nnumpy>=2\nsix    ==1.17.0\n--extra-index-url https://example.org/simple\n"
    )


def test_the_text_that_was_read_is_read_again_as_it_is(tmp_path):
    assert data.read_requirements("six==1.17.0\n", tmp_path) == "six==1.17.0\n"
    assert data.read_requirements(LOCK, tmp_path) == LOCK
    assert data.read_requirements("", tmp_path) == ""


def test_a_lock_is_kept_as_it_is(tmp_path):
    (tmp_path / "pylock.toml").write_text(LOCK)
    assert data.read_requirements(str(tmp_path / "pylock.toml"), tmp_path) == LOCK


def test_a_script_states_its_own_packages(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        '# /// script\n# requires-python = ">=3.11"\n# dependencies = [\n#   "six==1.17.0",\n# ]\n# ///\n'
    )
    assert data.read_requirements("train.py", tmp_path) == "six==1.17.0\n"
    script.write_text("import six\n")
    assert "train.py: it has no inline dependencies" in refused(data.read_requirements, "train.py", tmp_path)
    script.write_text("# /// script\n# dependencies = [\n# ///\n")
    assert "cannot be read" in refused(data.read_requirements, "train.py", tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "-e .",
        "--constraint=limits.txt",
        "./wheels/tool.whl",
        "/opt/tool.whl",
        "file:///opt/tool.whl",
        "~/tool",
    ],
)
def test_what_lies_on_this_machine_alone_is_refused(line, tmp_path):
    (tmp_path / "requirements.txt").write_text(f"six\n{line}\n")
    assert "does not exist on other machines" in refused(data.read_requirements, "requirements.txt", tmp_path)


@pytest.mark.parametrize("name", ["uv.lock", "poetry.lock", "Pipfile.lock", "environment.yml"])
def test_what_only_another_tool_reads_is_refused(name, tmp_path):
    (tmp_path / name).write_text("version = 1\n")
    assert f"cannot be {name}" in refused(data.read_requirements, name, tmp_path)


def test_other_files_that_cannot_be_used_are_refused(tmp_path):
    assert "No such file" in refused(data.read_requirements, "requirements.txt", tmp_path)
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfe\x00")
    assert "it is not a text file" in refused(data.read_requirements, "requirements.txt", tmp_path)
