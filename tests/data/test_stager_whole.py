"""What is staged is what was stored, the second time it costs nothing, and no name leads out of its folder."""

import io
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from distdl_jupyter.clusters import environment
from distdl_jupyter.data.stager import StagedSource, plan_layout
from distdl_jupyter.node import data_cache
from distdl_jupyter.node.data_cache import StagingFailed
from tests.data.stage import noise, reading, source

MB = 2**20
#: Modules that a program on a node loads besides those of ``node`` and ``data``.
CORE = {
    "distdl_jupyter.core",
    "distdl_jupyter.core.data",
    "distdl_jupyter.core.errors",
    "distdl_jupyter.permissions",
    "distdl_jupyter.worker",
    "distdl_jupyter.worker.secret_patterns",
}


def test_files_small_and_large_arrive_as_they_were_stored(stage, container):
    stored = {
        "cifar/a.bin": noise(9 * MB + 17, 1), "cifar/sub/b.bin": noise(100), "cifar/sub/deep/c": b"",
        "cifar/exact": noise(4 * MB),
    }  # fmt: skip
    for name, data in stored.items():
        container.put(name, data)
    container.put("cifar10/other", b"not asked for")
    run = stage.run(source(container, "cifar/"), sas=reading(container))
    last = run.staged()
    files = stage.files(last["paths"]["DISTDL_DATA_TRAIN"])
    assert files == {name.removeprefix("cifar/"): data for name, data in stored.items()}
    size = sum(map(len, stored.values()))
    assert (last["bytes"], last["cached"]) == (size, 0)
    assert run.of("progress")[-1] == {
        "type": "progress", "source": "train", "done": size, "total": size, "cached": 0, "files": 4, "of": 4,
    }  # fmt: skip
    assert run.asked == 1
    assert stage.left(".part") == []


def test_the_second_job_asks_for_nothing_and_only_what_changed_comes_anew(stage, container, blob_proxy):
    container.put("a", noise(5 * MB))
    container.put("b", b"old")
    first = stage.run(source(container, address=blob_proxy.endpoint), sas=reading(container)).staged()
    before = len(blob_proxy.seen)
    run = stage.run(source(container, address=blob_proxy.endpoint), sas=reading(container), job="job-2")
    last = run.staged()
    assert (last["bytes"], last["cached"], run.asked) == (0, 5 * MB + 3, 0)
    assert len(blob_proxy.seen) == before
    container.put("b", b"newer")
    last = stage.run(source(container, address=blob_proxy.endpoint), sas=reading(container), job="job-3").staged()
    assert (last["bytes"], last["cached"]) == (5, 5 * MB)
    assert [seen.path.rpartition("/")[2] for seen in blob_proxy.gets()[before:]] == ["b"]
    assert stage.files(last["paths"]["DISTDL_DATA_TRAIN"])["b"] == b"newer"
    assert stage.files(first["paths"]["DISTDL_DATA_TRAIN"])["b"] == b"old"


def test_nobody_may_write_to_what_is_staged_and_what_was_written_to_is_fetched_again(stage, container):
    container.put("a", b"good")
    last = stage.run(source(container), sas=reading(container)).staged()
    file = Path(last["paths"]["DISTDL_DATA_TRAIN"], "a")
    assert stat.S_IMODE(file.stat().st_mode) == 0o400
    assert {stat.S_IMODE((stage.base / name).stat().st_mode) for name in ("blobs", "staged")} == {0o700}
    file.chmod(0o600)
    file.write_bytes(b"evil")
    last = stage.run(source(container), sas=reading(container)).staged()
    assert last["bytes"] == 4
    assert stage.files(last["paths"]["DISTDL_DATA_TRAIN"]) == {"a": b"good"}


def test_the_same_blob_in_two_sources_comes_once(stage, container, blob_proxy):
    container.put("x/a", noise(9 * MB))
    told = [source(container, "x", name=name, address=blob_proxy.endpoint) for name in ("train", "valid")]
    last = stage.run(*told, sas=reading(container)).staged()
    assert stage.files(last["paths"]["DISTDL_DATA_TRAIN"]) == stage.files(last["paths"]["DISTDL_DATA_VALID"])
    assert last["bytes"] == last["cached"] == blob_proxy.sent() == 9 * MB


def test_hundreds_of_small_files_come_over_few_connections(stage, container, blob_proxy):
    from concurrent.futures import ThreadPoolExecutor

    names = [f"{number % 7}/{number:04}" for number in range(150)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda name: container.put(name, name.encode()), names))
    run = stage.run(source(container, address=blob_proxy.endpoint), sas=reading(container), workers=4)
    last = run.staged()
    assert stage.files(last["paths"]["DISTDL_DATA_TRAIN"]) == {name: name.encode() for name in sorted(names)}
    assert 4 <= blob_proxy.connections <= 8
    assert len(blob_proxy.gets()) == 150
    told = [message["done"] for message in run.of("progress")]
    assert told == sorted(told)
    assert len(told) <= 4 * last["seconds"] + 2, "four messages a second, and one at the end"


NAMES = ("a b", "ü/日本.txt", "100%.csv", "a%20b", "q?x=1", "h#1", "plus+and&=", "...", "~x", "semi;colon")


def test_names_with_blanks_other_letters_and_signs_arrive_and_markers_become_folders(stage, container):
    for name in (*NAMES, "d/e/file"):
        container.put(f"p/{name}", name.encode())
    for marker in ("d", "d/e", "empty/"):
        container.put(f"p/{marker}", b"", metadata={"hdi_isfolder": "true"})
    last = stage.run(source(container, "p"), sas=reading(container)).staged()
    folder = Path(last["paths"]["DISTDL_DATA_TRAIN"])
    assert stage.files(folder) == {name: name.encode() for name in (*NAMES, "d/e/file")}
    assert (folder / "empty").is_dir()


def of_names(*names, prefix="p", size=1):
    items = [[name, size, "1", ""] for name in names]
    return StagedSource(name="train", variable="X", kind="blob", prefix=prefix, items=items)


@pytest.mark.parametrize(
    "name",
    ["p/../evil", "p/..", "p/a/../../evil", "p//evil", "p/a//b", "p/./a", "/etc/evil", "q/evil", "pevil", "p/a\0b",
     "p/new\nline", "p/" + "x" * 256],
)  # fmt: skip
def test_a_name_that_would_lead_out_is_refused(name):
    with pytest.raises(StagingFailed, match="The object ") as refused:
        plan_layout(of_names("p/good", name))
    assert refused.value.source == "train"


def test_one_object_is_a_file_and_objects_that_cannot_be_files_together_are_refused():
    assert list(plan_layout(of_names("sets/train.csv", prefix="sets/train.csv"))[0]) == ["train.csv"]
    with pytest.raises(StagingFailed, match="'a' would be both a file and a folder"):
        plan_layout(of_names("a", "a/b", prefix=""))
    with pytest.raises(StagingFailed, match="'d/' has the name of a folder but contains data"):
        plan_layout(of_names("d/", prefix=""))


def test_a_path_is_used_in_its_place_when_it_is_the_same_folder(stage, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    (there / "a").write_bytes(b"1")
    told = {"name": "x", "variable": "DISTDL_DATA_X", "kind": "path", "path": str(there), "fingerprint": None}
    assert stage.run(told).staged()["paths"] == {"DISTDL_DATA_X": str(there)}
    told["fingerprint"] = data_cache.fingerprint(str(there))
    assert stage.run(told).staged()["paths"] == {"DISTDL_DATA_X": str(there)}
    (there / "a").write_bytes(b"22")
    assert "has different files on this node" in stage.run(told).failed()["text"]
    missing = {**told, "path": str(tmp_path / "nowhere")}
    assert stage.run(missing).failed()["text"] == f"{tmp_path / 'nowhere'} does not exist on this node."


def test_what_is_copied_to_other_hosts_holds_all_of_it_and_needs_nothing_else(stage, container, tmp_path):
    zipfile.ZipFile(io.BytesIO(environment.build_package().content)).extractall(tmp_path / "copy")
    code = "import sys, distdl_jupyter.data.stager as m; print(m.__file__, *sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path / "copy", env={"PATH": os.environ["PATH"]}, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    file, *modules = done.stdout.split()
    assert file.startswith(str(tmp_path / "copy"))
    tops = {name.partition(".")[0] for name in modules} - {"__main__"}
    assert tops - set(sys.stdlib_module_names) == {"distdl_jupyter"}
    assert {
        name
        for name in modules
        if name.startswith("distdl_jupyter.") and not name.startswith(("distdl_jupyter.node", "distdl_jupyter.data"))
    } <= {"distdl_jupyter._version", *CORE}
