"""What goes along to another machine: settings of libraries by name, never a secret, never a path of here."""

from distdl_jupyter.clusters import environment


def test_settings_of_libraries_travel_and_nothing_else():
    inherited = {
        "NCCL_DEBUG": "INFO", "HOROVOD_CYCLE_TIME": "2", "OMPI_MCA_btl": "self", "LANG": "C.UTF-8", "TZ": "UTC",
        "PATH": "/bin", "HOME": "/root", "LD_LIBRARY_PATH": "/x", "SSH_AUTH_SOCK": "/s", "LC_TIME": "de",
    }  # fmt: skip
    assert environment.select_for_remote_ranks(inherited) == {
        "NCCL_DEBUG": "INFO", "HOROVOD_CYCLE_TIME": "2", "OMPI_MCA_btl": "self", "LANG": "C.UTF-8", "TZ": "UTC",
    }  # fmt: skip


def test_a_name_that_looks_secret_stays_here():
    inherited = {"HF_TOKEN": "hf_x", "HF_HOME": "/h", "TOKENIZERS_PARALLELISM": "false", "TF_API_KEY": "k"}
    assert environment.select_for_remote_ranks(inherited) == {"HF_HOME": "/h", "TOKENIZERS_PARALLELISM": "false"}


def test_a_name_that_no_shell_takes_stays_here():
    assert environment.select_for_remote_ranks({"OMP_X()": "1", "NCCL_A-B": "1"}) == {}


def test_ssh_itself_gets_what_it_needs_and_no_secret_to_send(monkeypatch):
    environ = {
        "PATH": "/bin",
        "HOME": "/h",
        "SSH_AUTH_SOCK": "/s",
        "HF_TOKEN": "x",
        "LC_ALL": "C",
        "DISTDL_JOB_ID": "j",
    }
    monkeypatch.setattr(environment.os, "environ", environ)
    assert environment.select_for_ssh() == {"PATH": "/bin", "HOME": "/h", "SSH_AUTH_SOCK": "/s"}
