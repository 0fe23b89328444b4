"""The state of the code in git is looked at beside every job: no program that a repository names is run for it."""

import os
import subprocess

from distdl_jupyter.supervisor.parts import read_git_state


def test_a_changed_repository_is_told_and_runs_nothing_of_its_own(tmp_path):
    repository = tmp_path / "repository"
    repository.mkdir()

    def run(*words):
        own = ("-C", repository, "-c", "user.name=n", "-c", "user.email=n@n.example")
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
        subprocess.run(["git", *own, *words], check=True, capture_output=True, env=environment)

    run("init", "-b", "main")
    (repository / "train.py").write_text("lr = 0.1\n")
    run("add", ".")
    run("commit", "-m", "first")
    (repository / "train.py").write_text("lr = 0.2\n")
    (repository / ".gitattributes").write_text("* filter=own diff=own\n")
    program = f"touch {tmp_path}/run; cat"
    for name in ("filter.own.clean", "filter.own.process", "diff.own.textconv", "diff.own.command", "core.fsmonitor"):
        run("config", name, program)
    run("config", "filter.own.required", "true")
    run("config", "remote.origin.url", "https://me:hunter22@git.example/x.git")
    found = read_git_state(str(repository))
    assert (found.branch, found.remote, found.untracked) == ("main", "https://git.example/x.git", 1)
    assert "-lr = 0.1\n+lr = 0.2\n" in found.diff
    assert not (tmp_path / "run").exists()
