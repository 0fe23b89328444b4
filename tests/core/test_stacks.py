"""Stacks: what faulthandler really writes is read, named as tracebacks name code, and compared between ranks."""

import faulthandler
import json
import os
import threading

from distdl_jupyter.core import stacks
from distdl_jupyter.core.stacks import FrameLabeler
from distdl_jupyter.core.store import JobFolder
from distdl_jupyter.views.stacks import StacksDisplay
from distdl_jupyter.views.stacks import make_job_stacks as shown_stacks
from distdl_jupyter.views.wire import to_json

ABOUT = {"worker": "/env/distdl_jupyter/worker", "code": "/far/code", "stdlib": "/py/lib", "main": "0x0000000000000001"}
CELL = "/tmp/ipykernel_1/77.py"
PAYLOAD = {"kind": "cell", "filename": CELL, "sources": {
    CELL: {"text": "import x\nhvd.init()\nhvd.allreduce(x)", "label": "In [7]", "cell": 7, "first_line": 2},
    "/tmp/ipykernel_1/5.py": {"text": "def helper():\n    wait()", "label": "In [5]", "cell": 5, "first_line": 3},
}}  # fmt: skip
BELOW = """  File "/env/distdl_jupyter/worker/payload.py", line 53 in _run
  File "/env/distdl_jupyter/worker/rank.py", line 48 in main
  File "/env/distdl_jupyter/worker/__main__.py", line 7 in <module>
  File "<frozen runpy>", line 88 in _run_code
"""
ALLREDUCE = f"""Thread 0x0000000000000002 (most recent call first):
  File "/env/distdl_jupyter/worker/streams.py", line 126 in _run_flusher
  File "/py/lib/threading.py", line 982 in run

Current thread 0x0000000000000001 (most recent call first):
  File "/env/site-packages/horovod/torch/mpi_ops.py", line 999 in synchronize
  File "/env/site-packages/horovod/torch/mpi_ops.py", line 254 in allreduce
  File "{CELL}", line 4 in <module>
{BELOW}"""
HELPER = f"""Current thread 0x0000000000000001 (most recent call first):
  File "/tmp/ipykernel_1/5.py", line 2 in helper
  File "{CELL}", line 3 in <module>
{BELOW}"""


def file_of(texts, missing=(), **more):
    ranks = {str(rank): {"text": text, "about": ABOUT, **more} for rank, text in enumerate(texts)}
    return {"t": 1763.0, "why": "request", "ranks": ranks, "missing": dict(missing), "sources": {}}


def taken(*texts, **more):
    return stacks.parse_snapshot(1, file_of(texts, **more), PAYLOAD)


def test_what_faulthandler_writes_of_this_process_is_read(tmp_path):
    lock = threading.Lock()
    lock.acquire()

    def wartet_auf_ärger():
        lock.acquire()

    thread = threading.Thread(target=wartet_auf_ärger)
    thread.start()
    try:
        with (tmp_path / "é.txt").open("w+b") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            found = stacks.parse(file.read().decode())
    finally:
        lock.release()
        thread.join()
    mine = next(one for one in found if one.current)
    assert mine.frames[0].function == "test_what_faulthandler_writes_of_this_process_is_read"
    assert (mine.frames[0].file, mine.ident) == (__file__, f"{threading.get_ident():#018x}")
    assert any(one.frames[0].function == "wartet_auf_ärger" for one in found if one.frames and not one.current)


def test_other_versions_and_broken_texts():
    (named,) = stacks.parse(
        'Thread 0x01 [Main Thread] (most recent call first):\n  File "a b", line ??? in f\nC stack:\n?'
    )
    assert (named.name, named.frames[0].line, named.frames[0].file) == ("Main Thread", 0, "a b")
    assert stacks.parse("") == ()
    assert stacks.parse('  File "x", line 3 in y\n...\n\0') == ()
    twice = stacks.parse(f"{HELPER}\n{HELPER}")
    assert len(twice) == 1
    assert len(twice[0].frames) == 6


def test_cells_are_called_as_in_tracebacks():
    one = taken(HELPER, ALLREDUCE)
    helper, waits = one.ranks[0].main, one.ranks[1].main
    assert [frame.kind for frame in helper.frames] == ["cell", "cell", "worker", "worker", "worker", "worker"]
    assert (helper.user_frame.location, helper.user_frame.source) == ("In [5], line 4", "wait()")
    assert (helper.frames[1].location, helper.frames[1].source) == ("In [7], line 3", "hvd.init()")
    assert (waits.user_frame.location, waits.user_frame.source, waits.awaited_call) == (
        "In [7], line 4",
        "hvd.allreduce(x)",
        "hvd.allreduce",
    )
    assert one.ranks[1].others == (), "the worker's own thread is nobody's concern"


def test_ranks_at_the_same_place_are_one_group_and_those_that_wait_are_the_others():
    one = taken(ALLREDUCE, HELPER, ALLREDUCE, ALLREDUCE)
    assert [group.ranks for group in one.groups()] == [(1,), (0, 2, 3)]
    assert one.outliers == (1,)
    assert one.sentence == (
        "rank 1 is in In [5], line 4, while ranks 0, 2 and 3 wait for it in hvd.allreduce (In [7], line 4)"
    )
    assert taken(ALLREDUCE, HELPER).outliers == taken(HELPER, ALLREDUCE).groups()[1].ranks == (1,)
    assert taken(ALLREDUCE, ALLREDUCE).outliers == ()


def test_ranks_that_wait_in_different_operations_wait_for_nobody_in_particular():
    other = ALLREDUCE.replace("in allreduce", "in broadcast")
    assert " for " not in taken(ALLREDUCE, other).sentence
    assert "wait for them in" in taken(ALLREDUCE, ALLREDUCE, ALLREDUCE, HELPER, HELPER).sentence


def test_a_rank_that_gave_none_differs():
    one = stacks.parse_snapshot(1, file_of([ALLREDUCE], missing={"1": "Its process is stopped."}), PAYLOAD)
    assert one.outliers == (1,)
    assert one.sentence == "rank 1 sent no stacks, while rank 0 waits for it in hvd.allreduce (In [7], line 4)"
    assert stacks.parse_snapshot(1, file_of([], missing={"0": "x"}), {}).groups() == ()


def test_code_that_stands_on_other_hosts_is_the_users_with_a_short_name():
    names = FrameLabeler(PAYLOAD, ABOUT, {"/far/code/model.py": {"9": "x = f(x)"}})
    text = f'Thread 0x1 (most recent call first):\n  File "/far/code/model.py", line 9 in step\n{BELOW}'
    frame = names.label_thread(stacks.parse(text)[0], main=True).user_frame
    assert (frame.kind, frame.label, frame.source) == ("user", "model.py", "x = f(x)")


def test_frames_of_a_warm_start_below_the_worker_are_not_the_users():
    warm = '  File "/env/distdl_jupyter/warm/template.py", line 1 in _start\n  File "<frozen runpy>", line 1 in _run\n'
    names = FrameLabeler(PAYLOAD, ABOUT, {})
    thread = names.label_thread(stacks.parse(HELPER + warm)[0], main=True)
    assert [frame.kind for frame in thread.frames if frame.kind != "worker"] == ["cell", "cell"]


def folder_with(tmp_path, **files):
    folder = JobFolder(tmp_path)
    (tmp_path / "payload.json").write_text(json.dumps(PAYLOAD))
    stacks.get_path(folder, 1).parent.mkdir()
    for name, content in files.items():
        (stacks.get_path(folder, 1).parent / f"{name}.json").write_text(content)
    return folder


HOOKED = f"""Thread 0x0000000000000003 (most recent call first):
  File "/env/distdl_jupyter/worker/report.py", line 40 in log
  File "/tmp/ipykernel_1/5.py", line 2 in helper
  File "/py/lib/threading.py", line 982 in run

Current thread 0x0000000000000001 (most recent call first):
  File "/env/site-packages/torch/distributed/c10d.py", line 30 in all_reduce
  File "/env/distdl_jupyter/worker/hooks/parallel.py", line 12 in watched
  File "/env/distdl_jupyter/compat/horovod.py", line 5 in allreduce
  File "/env/site-packages/torch/optim/optimizer.py", line 9 in wrapper
  File "/env/distdl_jupyter/worker/hooks/steps.py", line 3 in watched
  File "{CELL}", line 3 in <module>
{BELOW}"""


def test_hooks_of_this_package_above_the_users_code_are_left_out_of_every_thread():
    rank = taken(HOOKED).ranks[0]
    assert [frame.function for frame in rank.main.frames[:4]] == ["all_reduce", "wrapper", "<module>", "_run"]
    (other,) = rank.others
    assert [frame.function for frame in other.frames] == ["helper", "run"]
    assert rank.main.awaited_call == "torch.distributed.all_reduce"
    display = StacksDisplay(**vars(taken(HOOKED)))
    for shown in (str(display), display._repr_html_(), str(to_json(shown_stacks(taken(HOOKED))))):
        assert "watched" not in shown
        assert "report.py" not in shown
    assert "hooks/steps.py" in rank.text  # as it was dumped


def test_ranks_that_have_not_reached_the_users_code_keep_the_frames_of_this_package():
    (group,) = taken(f"Current thread 0x0000000000000001 (most recent call first):\n{BELOW}").groups()
    assert [frame.function for frame in group.thread.frames[:2]] == ["_run", "main"]


def test_the_newest_that_is_kept_is_read(tmp_path):
    whole = json.dumps(file_of([HELPER], host="node-a", pid=7, step=3, silent=1.5, state="running"))
    folder = folder_with(tmp_path, **{"1": whole, "2": whole, "10": whole, ".11": whole, "x": whole, "²": whole})
    assert stacks.list_numbers(folder) == [1, 2, 10]
    assert stacks.read(folder).number == 10
    rank = stacks.read(folder, 2).ranks[0]
    assert (rank.host, rank.pid, rank.step, rank.silent, rank.state) == ("node-a", 7, 3, 1.5, "running")
    assert stacks.read(folder, 3) is None


def test_what_cannot_be_read_is_none(tmp_path):
    folder = folder_with(
        tmp_path, **{"1": "{", "2": "[]", "3": '{"t": 1, "ranks": {"a": 1}}', "4": '{"t": 1, "ranks": []}'}
    )
    assert [stacks.read(folder, number) for number in (1, 2, 3, 4)] == [None] * 4
    assert stacks.read(JobFolder(tmp_path / "nothing")) is None


def test_lines_of_the_users_files_are_found_here_also_those_that_travelled(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "model.py").write_text("a\n  b = 1\n")
    script = tmp_path / "train.py"
    script.write_text("c\n")
    secret = tmp_path / "notes.txt"
    secret.write_text("d\n")
    frames = [("/far/code/model.py", 2), (script, 1), (secret, 1), ("/nowhere.py", 1), (script, 99)]
    text = "Thread 0x1 (most recent call first):\n" + "".join(f'  File "{f}", line {n} in g\n' for f, n in frames)
    found = stacks.read_sources(JobFolder(tmp_path), PAYLOAD, [(text, ABOUT)])
    assert found == {"/far/code/model.py": {"2": "b = 1"}, os.fspath(script): {"1": "c"}}


def test_a_module_that_is_imported_waits_for_nobody():
    text = f"""Current thread 0x0000000000000001 (most recent call first):
  File "/env/site-packages/torch/distributed/tensor/ops.py", line 395 in register
  File "/env/site-packages/torch/distributed/tensor/ops.py", line 1 in <module>
  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed
  File "{CELL}", line 2 in <module>
"""
    assert stacks.parse_snapshot(1, file_of([text]), PAYLOAD).ranks[0].main.awaited_call == ""
