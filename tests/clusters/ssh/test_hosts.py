"""Hosts from lists, from hostfiles of Open MPI and Horovod, and the names in the ssh configuration."""

import pytest

from distdl_jupyter.clusters.ssh import Host, SshOptions, list_configured_hosts, parse_hosts
from distdl_jupyter.core.errors import InvalidSpec


def names(**options):
    return [host.name for host in parse_hosts(SshOptions(**options))]


def test_a_list_keeps_its_order_users_and_slots():
    assert parse_hosts(SshOptions(hosts="gpu2:4, me@gpu1 [fe80::1]:2 10.0.0.7")) == (
        Host("gpu2", "gpu2", 4),
        Host("gpu1", "me@gpu1", 0),
        Host("fe80::1", "fe80::1", 2),
        Host("10.0.0.7", "10.0.0.7", 0),
    )


@pytest.mark.parametrize("user", ["me", "_me", "m.e-1", "LAB\\me", "first+last", "2me"])
def test_a_user_is_named_as_systems_name_users(user):
    assert parse_hosts(SshOptions(hosts=f"{user}@gpu1")) == (Host("gpu1", f"{user}@gpu1", 0),)


def test_a_python_list_is_a_list():
    assert names(hosts=["gpu1", "gpu2:2"]) == ["gpu1", "gpu2"]


def test_a_host_that_is_named_again_has_more_slots():
    assert parse_hosts(SshOptions(hosts="a,b,a")) == (Host("a", "a", 2), Host("b", "b", 0))


@pytest.mark.parametrize(
    "word",
    ["-oProxyCommand=evil", "me@-oX", "a b@", "gpu1:", "gpu1:0", "gpu1:x", "a;b", "$(x)", "user;id@host", "$(id)@host",
     "`id`@host", "a|b@host", "a&b@host", "a'b@host", "a>b@host", "me\\@host", "%r@host", "gpu*"],
)  # fmt: skip
def test_what_is_no_host_is_named_and_never_reaches_ssh(word):
    with pytest.raises(InvalidSpec) as told:
        parse_hosts(SshOptions(hosts=word))
    assert told.value.code == "host-name-invalid"
    assert told.value.field == "hosts"


def test_no_host_at_all_says_how_to_name_one():
    with pytest.raises(InvalidSpec, match=r"hosts=\['gpu1', 'gpu2'\]"):
        parse_hosts(SshOptions())


def test_a_hostfile_of_open_mpi(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# the lab\ngpu1 slots=4 max_slots=8  # big\n\nme@gpu2 slots = 2\ngpu3\ngpu3\n")
    assert parse_hosts(SshOptions(hostfile=str(path))) == (
        Host("gpu1", "gpu1", 4),
        Host("gpu2", "me@gpu2", 2),
        Host("gpu3", "gpu3", 2),
    )


def test_a_hostfile_with_colons(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("gpu1:4\ngpu2:2\n")
    assert [(host.name, host.slots) for host in parse_hosts(SshOptions(hostfile=str(path)))] == [
        ("gpu1", 4),
        ("gpu2", 2),
    ]


def test_a_hostfile_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidSpec, match=r"Cannot read the hostfile .*nowhere: No such file") as told:
        parse_hosts(SshOptions(hostfile=str(tmp_path / "nowhere")))
    assert told.value.field == "hostfile"


def test_a_list_and_a_file_are_one_too_many(tmp_path):
    with pytest.raises(InvalidSpec, match="both set"):
        parse_hosts(SshOptions(hosts="a", hostfile="b"))


def test_the_configuration_names_hosts(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list_configured_hosts() == []
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(
        "# hosts of the lab\nhost gpu1 gpu2\n  HostName 10.0.0.1\nHost=login\nHost * !gpu9\n  User me\n"
    )
    assert list_configured_hosts() == ["gpu1", "gpu2", "login"]
