"""``distdl clusters`` as a terminal runs it."""

import json
import subprocess

import pytest

from tests import processes

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch, rack):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))


def distdl(*words, code=0):
    done = processes.distdl("clusters", *words, code=code, stdin=subprocess.DEVNULL)
    return done.stdout if code == 0 else done.stderr or done.stdout


@pytest.mark.full
def test_a_cluster_is_added_listed_shown_changed_checked_and_removed():
    assert "distdl clusters add lab ssh" in distdl()
    assert "--machines" in distdl("add", "mini", "rack", "--help")
    assert "Added cluster mini." in distdl("add", "mini", "rack", "--machines", 3, "--down", 1, "--fast")
    assert "2 of 3 up" in distdl()
    (local, mini) = json.loads(distdl("--json"))
    assert (local["name"], mini["name"]) == ("local", "mini")
    assert (mini["options"], mini["nodes"][2]["state"]) == ({"machines": 3, "down": 1, "fast": True}, "down")
    shown = distdl("show", "mini")
    assert "machines: 3" in shown
    assert "node-2  ✗ down" in shown
    assert "node-2" in distdl("check", "mini", code=1)
    assert "Changed cluster mini." in distdl("change", "mini", "--down", 0)
    assert "mini  rack  3 of 3 up" in distdl("show", "mini")
    distdl("check", "mini")
    assert "Removed cluster mini." in distdl("remove", "mini")
    assert "mini" not in distdl()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("add", "mini", "rak"), "Unknown cluster type 'rak'. Did you mean rack or ray?"),
        (("add", "mini", "rack", "--machine", 3), "Did you mean --machines?"),
        (("add", "mini", "rack", "--machines", "x"), "List all options with: distdl clusters add mini rack --help"),
        (("add", "mini", "rack", "3"), "Unexpected argument '3'. Every value must follow an option."),
        (("add", "mini", "local", "--x", 3), "Unknown option '--x'. Use one of: --oversubscribe, --wait."),
        (("show", "mini"), "Unknown cluster 'mini'"),
        (("check", "rack"), "rack is a type of cluster, not the name of a cluster"),
        (("remove", "local"), "local is built in"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_remedy(words, says):
    assert says in distdl(*words, code=2)
