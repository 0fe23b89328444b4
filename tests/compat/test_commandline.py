"""Command lines as Batch AI's users wrote them, and what is refused instead of guessed."""

import pytest

from distdl_jupyter.compat.batchai.command import parse_command_line
from distdl_jupyter.core.errors import InvalidSpec

RECIPE = (
    "mpirun -mca btl_tcp_if_exclude docker0,lo --allow-run-as-root --hostfile $AZ_BATCHAI_MPI_HOST_FILE "
    "python $AZ_BATCHAI_INPUT_SCRIPTS/mnist.py"
)
INTEL = (
    "source /opt/intel/mpivars.sh; echo $AZ_BATCH_HOST_LIST; mpirun -n 8 -ppn 4 -hosts $AZ_BATCH_HOST_LIST "
    "-env I_MPI_FABRICS=dapl -env I_MPI_DEBUG 6 -genvall python -u train.py --epochs 5"
)
OPEN_MPI = """echo $AZ_BATCH_HOST_LIST; \\
    cat $AZ_BATCHAI_MPI_HOST_FILE; \\
    mpirun -np 8 --hostfile $AZ_BATCHAI_MPI_HOST_FILE \\
    -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -mca btl ^openib \\
    --allow-run-as-root python -u $AZ_BATCHAI_INPUT_SCRIPTS/imagenet.py"""


def test_the_recipe_of_horovod_is_taken_apart():
    found = parse_command_line(RECIPE)
    assert (found.script, found.arguments) == ("$AZ_BATCHAI_INPUT_SCRIPTS/mnist.py", ())
    assert (found.launcher, found.processes, found.per_node) == ("mpirun", None, None)
    assert [part for part, _ in found.ignored] == [
        "mpirun",
        "-mca btl_tcp_if_exclude docker0,lo",
        "--allow-run-as-root",
        "--hostfile $AZ_BATCHAI_MPI_HOST_FILE",
    ]


def test_a_line_of_several_commands_runs_its_one_script():
    found = parse_command_line(OPEN_MPI)
    assert (found.script, found.processes) == ("$AZ_BATCHAI_INPUT_SCRIPTS/imagenet.py", 8)
    assert found.variables == {"NCCL_DEBUG": "INFO"}
    left = dict(found.ignored)
    assert "cat $AZ_BATCHAI_MPI_HOST_FILE" in left
    assert "-x LD_LIBRARY_PATH" in left
    assert "-mca btl ^openib" in left
    assert "-u" in left


def test_intel_mpi_s_flags_are_known():
    found = parse_command_line("mpirun -n 8 -ppn 4 -hosts a,b -env I_MPI_FABRICS dapl -genvall python t.py")
    assert (found.processes, found.per_node) == (8, 4)
    assert found.variables == {"I_MPI_FABRICS": "dapl"}


def test_intel_mpi_s_variables_may_be_written_with_an_equals_sign():
    found = parse_command_line(INTEL)
    assert found.script == "train.py"
    assert found.arguments == ("--epochs", "5")
    assert found.variables == {"I_MPI_FABRICS": "dapl", "I_MPI_DEBUG": "6"}


@pytest.mark.parametrize(
    ("line", "processes", "arguments"),
    [
        ("python train.py", None, ()),
        ("/opt/conda/bin/python3.6 -W ignore -u train.py --name 'two words'", None, ("--name", "two words")),
        ("horovodrun -np 4 -H a:2,b:2 --timeline-filename=/t.json python train.py", 4, ()),
        ("A=1 mpirun -np=2 python train.py -n 3", 2, ("-n", "3")),
        ("bash -c 'cd /x && python train.py --lr 0.1'", None, ("--lr", "0.1")),
        ("python train.py > log.txt 2>&1", None, ()),
        ("python train.py 2>&1 | tee log.txt", None, ()),
        ("mpirun -np 2 --made-up 7 python train.py", 2, ()),
        ("python train.py --epochs 2 >log.txt", None, ("--epochs", "2")),
        ("python train.py --title 'loss > 2'", None, ("--title", "loss > 2")),
        ("pip install keras; python train.py", None, ()),
    ],
)
def test_what_is_run_is_the_script_alone(line, processes, arguments):
    found = parse_command_line(line)
    assert (found.script, found.processes, found.arguments) == ("train.py", processes, arguments)


def test_an_unknown_flag_is_named():
    assert "--made-up 7" in dict(parse_command_line("mpirun --made-up 7 python train.py").ignored)


def test_variables_and_the_folder_are_kept():
    found = parse_command_line("export A=1 B='x y'; cd $AZ_BATCHAI_JOB_TEMP && C=3 exec python train.py")
    assert found.variables == {"A": "1", "B": "x y", "C": "3"}
    assert found.directory == "$AZ_BATCHAI_JOB_TEMP"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("$AZ_BATCHAI_INPUT_SCRIPTS/run.sh", "runs the shell script $AZ_BATCHAI_INPUT_SCRIPTS/run.sh"),
        ("bash run.sh", "runs the shell script run.sh"),
        ("./train --fast", "runs ./train, which is not Python"),
        ("python -m package.train", "runs python without a script SCRIPT.py"),
        ("python -c 'import a' b.py", "runs python without a script SCRIPT.py"),
        ("python train", "runs python without a script SCRIPT.py"),
        ("python a.py; python b.py", "two scripts, a.py and b.py"),
        ("for i in 1 2; do python a.py; done", "runs for, which is not Python"),
        ("python $(ls *.py)", "runs another command within it"),
        ("echo hello", "runs no Python script"),
        ("python 'train.py", "No closing quotation"),
        ("mpirun -np two python train.py", "-np of mpirun is 'two'"),
        ("mpirun -np 0 python train.py", "-np of mpirun is '0'"),
        ("mpirun -np", "runs mpirun without a script SCRIPT.py"),
        ("mpirun -env A", "runs mpirun without a script SCRIPT.py"),
        ("mpirun -np 2 nvprof python train.py", "runs mpirun without a script SCRIPT.py"),
        ("mpirun -np 2 --made-up 7 8 python train.py", "runs mpirun without a script SCRIPT.py"),
        ("mpirun -np 2 python -m mpi4py train.py", "runs mpirun without a script SCRIPT.py"),
        ("mpirun -np 1 python a.py : -np 1 python b.py", "runs mpirun without a script SCRIPT.py"),
        ("mpirun -np 2 bash -c 'python train.py'", "runs mpirun without a script SCRIPT.py"),
        ("python train.py --join ';'", "quotes an operator of the shell"),
        ("", "runs no Python script"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_with_a_remedy(line, says):
    with pytest.raises(InvalidSpec) as refused:
        parse_command_line(line)
    assert says in refused.value.message
    assert refused.value.hint


RUN = """#!/bin/bash
# what the recipes call run-cifar10.sh
export TF_CPP_MIN_LOG_LEVEL=2   # quiet

mpirun -np $NUM_PROCESSES --hostfile $AZ_BATCHAI_MPI_HOST_FILE \\
  python $AZ_BATCHAI_INPUT_SCRIPTS/cifar10.py --epochs 5  # all of them
"""


@pytest.mark.parametrize("line", ["$SCRIPTS/run.sh", "bash -x $SCRIPTS/run.sh", "/bin/sh $SCRIPTS/run.sh"])
def test_a_shell_script_that_is_here_is_read(line):
    asked = []
    found = parse_command_line(line, lambda path: asked.append(path) or RUN)
    assert asked == ["$SCRIPTS/run.sh"]
    assert (found.script, found.arguments) == ("$AZ_BATCHAI_INPUT_SCRIPTS/cifar10.py", ("--epochs", "5"))
    assert found.variables == {"TF_CPP_MIN_LOG_LEVEL": "2"}
    assert ("-np $NUM_PROCESSES", "its value is known only when it runs") in found.ignored


def test_a_shell_script_with_arguments_or_another_script_in_it_is_refused():
    with pytest.raises(InvalidSpec, match="with arguments"):
        parse_command_line("bash run.sh fast", lambda _: RUN)
    with pytest.raises(InvalidSpec, match=r"run\.sh, which is missing"):
        parse_command_line("bash run.sh", lambda _: "bash run.sh")
