"""Who a rank is, from the variables of each launcher."""

import json

import pytest

from distdl_jupyter.worker.identity import identify
from tests.worker import ranks

FOLDER = {"DISTDL_JOB_DIR": "/jobs/x"}


def test_the_package_s_own_variables_win():
    env = FOLDER | {"DISTDL_RANK": "3", "DISTDL_WORLD_SIZE": "4", "DISTDL_LOCAL_RANK": "1", "DISTDL_LOCAL_SIZE": "2",
                    "DISTDL_NODE_RANK": "1", "DISTDL_NODE_COUNT": "2", "DISTDL_HOST": "b", "RANK": "9"}  # fmt: skip
    who = identify(env)
    assert who[:4] == (3, 4, 1, "b")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
          "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_NODE_RANK": "1", "SLURM_PROCID": "0"},
         (5, 8, 1, 4, 1, 2)),
        ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2",
          "HOROVOD_CROSS_RANK": "1", "HOROVOD_CROSS_SIZE": "2"}, (2, 4, 0, 2, 1, 2)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2, 1, 2, 0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"},
         (3, 4, 1, 2, 1, 2)),
        ({}, (0, 1, 0, 1, 0, 1)),
    ],
)  # fmt: skip
def test_each_launcher_is_understood_and_the_variables_are_set(variables, expected):
    env = FOLDER | variables
    assert identify(env)[:3] == expected[:3]
    assert identify(env)[:3] == expected[:3], "the second look reads what the first one set"
    assert env["DISTDL_RANK"] == str(expected[0])
    if variables:
        names = ("LOCAL_SIZE", "NODE_RANK", "NODE_COUNT")
        assert tuple(int(env[f"DISTDL_{name}"]) for name in names) == expected[3:]


def test_a_launcher_s_rank_takes_its_own_variables_from_the_list(tmp_path):
    (tmp_path / "ranks.json").write_text(json.dumps([{"A": "0"}, {"A": "1", "DISTDL_HOST": "node-b"}]))
    env = FOLDER | {"RANK": "1", "WORLD_SIZE": "2", "DISTDL_PIPES": str(tmp_path)}
    who = identify(env)
    assert (who.host, env["A"], who.pipes) == ("node-b", "1", tmp_path)


def test_a_rank_without_a_folder_says_so_and_does_not_start(folder):
    env = ranks.environment(folder)
    env.pop("DISTDL_JOB_DIR")
    ended = ranks.run(folder, env=env)
    assert ended.code == 64
    assert ended.err == (
        "This rank cannot start: DISTDL_JOB_DIR must be the absolute path of the job's folder. Start ranks through a "
        "job.\n"
    )


def test_a_rank_that_is_no_number_says_so(folder):
    ended = ranks.run(folder, DISTDL_RANK="one")
    assert ended.code == 64
    assert "DISTDL_RANK must be an integer, not 'one'." in ended.err
