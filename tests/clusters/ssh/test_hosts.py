"""Hosts from lists, hostfiles of Open MPI and Horovod, and patterns over the ssh configuration."""

import pytest

from distdl_jupyter.clusters.ssh.hosts import Host, SshOptions, configured, listed
from distdl_jupyter.core.errors import InvalidSpec


def names(**options):
    return [host.name for host in listed(SshOptions(**options))]


@pytest.fixture
def config(tmp_path):
    more = tmp_path / "more.conf"
    more.write_text("Host gpu3\n  HostName 10.0.0.3\nHost gpu4 'x\n")
    path = tmp_path / "config"
    path.write_text(
        f'# hosts of the lab\nInclude "{tmp_path}/m*.conf"\nInclude {tmp_path}/config\n'
        "host gpu1 gpu2\n  HostName 10.0.0.1\nHost=login\nHost * !gpu9\n  User me\nMatch host gpu8\n  Port 2\n"
    )
    return str(path)


def test_a_list_keeps_its_order_users_and_slots():
    assert listed(SshOptions(hosts="gpu2:4, me@gpu1 [fe80::1]:2 10.0.0.7")) == (
        Host("gpu2", "gpu2", 4),
        Host("gpu1", "me@gpu1", 0),
        Host("fe80::1", "fe80::1", 2),
        Host("10.0.0.7", "10.0.0.7", 0),
    )


@pytest.mark.parametrize("user", ["me", "_me", "m.e-1", "LAB\\me", "first+last", "2me"])
def test_a_user_is_named_as_systems_name_users(user):
    assert listed(SshOptions(hosts=f"{user}@gpu1")) == (Host("gpu1", f"{user}@gpu1", 0),)


def test_a_python_list_is_a_list():
    assert names(hosts=["gpu1", "gpu2:2"]) == ["gpu1", "gpu2"]


def test_a_host_that_is_named_again_has_more_slots():
    assert listed(SshOptions(hosts="a,b,a")) == (Host("a", "a", 2), Host("b", "b", 0))


@pytest.mark.parametrize(
    "word",
    ["-oProxyCommand=evil", "me@-oX", "a b@", "gpu1:", "gpu1:0", "gpu1:x", "a;b", "$(x)", "user;id@host", "$(id)@host",
     "`id`@host", "a|b@host", "a&b@host", "a'b@host", "a>b@host", "me\\@host", "%r@host"],
)  # fmt: skip
def test_what_is_no_host_is_named_and_never_reaches_ssh(word):
    with pytest.raises(InvalidSpec) as told:
        listed(SshOptions(hosts=word))
    assert told.value.code == "host-name-invalid"
    assert told.value.field == "hosts"


def test_no_host_at_all_says_how_to_name_one():
    with pytest.raises(InvalidSpec, match=r"hosts=\['gpu1', 'gpu2'\]"):
        listed(SshOptions())


def test_a_hostfile_of_open_mpi(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# the lab\ngpu1 slots=4 max_slots=8  # big\n\nme@gpu2 slots = 2\ngpu3\ngpu3\n")
    assert listed(SshOptions(hostfile=str(path))) == (
        Host("gpu1", "gpu1", 4),
        Host("gpu2", "me@gpu2", 2),
        Host("gpu3", "gpu3", 2),
    )


def test_a_hostfile_with_colons(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("gpu1:4\ngpu2:2\n")
    assert [(host.name, host.slots) for host in listed(SshOptions(hostfile=str(path)))] == [("gpu1", 4), ("gpu2", 2)]


def test_a_hostfile_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidSpec, match=r"Cannot read the hostfile .*nowhere: No such file") as told:
        listed(SshOptions(hostfile=str(tmp_path / "nowhere")))
    assert told.value.field == "hostfile"


def test_a_list_and_a_file_are_one_too_many(tmp_path):
    with pytest.raises(InvalidSpec, match="both set"):
        listed(SshOptions(hosts="a", hostfile="b"))


def test_the_configuration_names_hosts_also_in_the_files_it_includes(config):
    assert configured(config) == ["gpu3", "gpu4", "'x", "gpu1", "gpu2", "login"]
    assert configured("/nowhere/config") == []


def test_a_pattern_takes_the_configured_hosts(config):
    assert names(hosts="gpu[1-3]", ssh_config=config) == ["gpu3", "gpu1", "gpu2"]
    assert listed(SshOptions(hosts="me@gpu?:2", ssh_config=config))[0] == Host("gpu3", "me@gpu3", 2)


def test_a_pattern_that_nothing_fits_says_so(config):
    with pytest.raises(InvalidSpec, match="No host in the ssh configuration matches 'cpu\\*'"):
        listed(SshOptions(hosts="cpu*", ssh_config=config))
