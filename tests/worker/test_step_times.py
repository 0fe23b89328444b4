"""Steps that a rank measures in unchanged training code; a failing hook never breaks training."""

import os
import textwrap

import pytest

from distdl_jupyter.worker import step_times
from tests.worker import ranks

TORCH = """
import time, torch
from torch.utils.data import DataLoader
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def loss(rows=None):
    return net(torch.ones(2, 4) if rows is None else rows).square().mean()
"""


def run(folder, code, *, notes=()):
    """Run a cell on one rank; return its records."""
    ended = ranks.run(folder.cell(textwrap.dedent(TORCH + textwrap.dedent(code))))
    assert ended.code == 0, ended.err
    assert [note["text"] for note in ended.of("note")] == list(notes)
    reports = ended.of("steps")
    firsts = [report["first"] for report in reports]
    assert firsts == [sum(len(report["records"]) for report in reports[:at]) for at in range(len(reports))]
    return [record for report in reports for record in report["records"]]


def test_a_step_lies_between_two_steps_of_the_optimizer(folder):
    records = run(folder, """
        for rows in DataLoader(torch.ones(24, 4), batch_size=8):
            time.sleep(0.01)
            loss(rows).backward()
            optimizer.step()
            time.sleep(0.02)
    """)  # fmt: skip
    assert len(records) == 3
    for seconds, data, rest, samples in records[1:]:
        assert seconds >= 30_000
        assert 0 < data < seconds
        assert 20_000 <= rest < seconds - 10_000
        assert samples == 8


@pytest.mark.full
@pytest.mark.parametrize(
    ("code", "samples"),
    [
        pytest.param("""
            other = torch.optim.Adam(net.parameters())
            for rows in DataLoader(torch.ones(24, 4), batch_size=8):
                loss(rows).backward()
                optimizer.step()
                other.step()
            """, [8, 8, 8], id="two optimizers after one backward pass are one step"),
        pytest.param("""
            for number, rows in enumerate(DataLoader(torch.ones(48, 4), batch_size=4), 1):
                loss(rows).backward()
                if number % 3 == 0:
                    optimizer.step()
            """, [12, 12, 12, 12], id="batches of an accumulated gradient are samples of one step"),
        pytest.param("""
            from distdl_jupyter import log
            for rows in DataLoader(torch.ones(16, 4), batch_size=8):
                loss(rows).backward()
                optimizer.step()
                log(samples=100)
            """, [100, 100], id="samples that the code logs go before those of batches"),
        pytest.param("""
            searching = torch.optim.LBFGS(net.parameters(), max_iter=3)
            def closure():
                searching.zero_grad()
                value = loss()
                value.backward()
                return value
            for _ in range(2):
                searching.step(closure)
            """, [0, 0], id="a closure with several passes is one step"),
    ],
)  # fmt: skip
def test_steps_and_their_samples(folder, code, samples):
    assert [record[3] for record in run(folder, code)] == samples


def test_evaluation_is_the_rest_and_its_samples_do_not_count(folder):
    records = run(folder, """
        for rows in DataLoader(torch.ones(16, 4), batch_size=8):
            loss(rows).backward()
            optimizer.step()
            with torch.no_grad():
                for more in DataLoader(torch.ones(64, 4), batch_size=32):
                    time.sleep(0.01)
    """)  # fmt: skip
    assert records[1][2] >= 20_000
    assert records[1][3] == 8


def test_unusual_batches_and_errors_of_loaders_and_losses_are_unchanged(folder):
    records = run(folder, """
        class Odd:
            @property
            def shape(self):
                raise RuntimeError("odd")
        assert len(list(DataLoader([Odd()] * 2, batch_size=1, collate_fn=lambda rows: rows[0]))) == 2
        class Broken(torch.utils.data.Dataset):
            def __len__(self):
                return 1
            def __getitem__(self, number):
                raise LookupError("broken")
        try:
            next(iter(DataLoader(Broken())))
        except LookupError as error:
            assert str(error) == "broken"
        for wrong in (torch.ones(2), [], None):
            try:
                torch.autograd.backward(wrong)
            except (RuntimeError, TypeError, ValueError):
                pass
        loss().backward()
        optimizer.step()
    """)  # fmt: skip
    assert len(records) == 1


def test_failure_of_a_hook_ends_the_measurement_with_one_note_and_not_the_training(folder):
    records = run(folder, """
        from distdl_jupyter.worker.step_times import recorder
        del recorder._waits
        for _ in range(3):
            loss().backward()
            optimizer.step()
    """, notes=["Step times are no longer measured: AttributeError was raised ('StepRecorder' object has no attribute "
        "'_waits')."])  # fmt: skip
    assert records == []


def test_after_a_failure_in_a_skipped_step_the_other_hooks_are_still_called_with_the_number_of_each_step(folder):
    run(folder, """
        from distdl_jupyter.worker import step_times
        from distdl_jupyter.worker.hooks import steps
        step_times._SHORT_NS = 1_000_000_000  # also on a busy machine
        recorder, numbers, failed = step_times.recorder, [], None
        steps.listeners.append(lambda _: numbers.append(recorder.step))
        for number in range(300):
            loss().backward()
            if number > 200 and failed is None and not recorder.is_detailed:
                failed = number
                recorder.fail(ValueError("x"))
            optimizer.step()
            optimizer.step()  # the same step
        assert numbers[-2 * (300 - failed):] == [number for number in range(failed, 300) for _ in range(2)]
    """, notes=["Step times are no longer measured: ValueError was raised (x)."])  # fmt: skip


def test_of_short_steps_few_are_measured_and_a_pause_in_another_one_is_found(folder):
    records = run(folder, """
        from distdl_jupyter.worker import step_times
        step_times._SHORT_NS = 1_000_000_000  # also on a busy machine
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        measured = []
        for step, rows in enumerate(DataLoader(torch.ones(300 * 2, 4), batch_size=2)):
            loss = model(rows).square().mean()
            if step == 250:
                loss.register_hook(lambda _: time.sleep(0.3))
            loss.backward()
            measured.append(step_times.recorder.is_detailed)
            optimizer.step()
            if step == 200:
                time.sleep(0.3)
        assert all(measured[:100]), measured
        assert not measured[201] and not measured[250], measured
        assert 0 < sum(measured[100:]) < 130, measured
    """)  # fmt: skip
    assert len(records) == 300
    assert [record[3] for record in records] == [2] * 300
    assert records[201][2] > 250_000, "what the rank does before a pass is its own"
    assert records[250][4] > 250_000, "what a pass takes longer than others is a wait"
    assert sum(record[0] > 250_000 for record in records) == 2


def test_steps_of_some_milliseconds_are_sampled_too(folder):
    records = run(folder, """
        from distdl_jupyter.worker import step_times
        measured = []
        for _ in range(140):
            loss().backward()
            measured.append(step_times.recorder.is_detailed)
            time.sleep(0.01)
            optimizer.step()
        assert all(measured[:100]), measured
        assert sum(measured[100:]) < 20, measured
    """)  # fmt: skip
    assert len(records) == 140
    assert sum(record[0] for record in records[100:]) > 40 * 10_000


def test_all_ways_of_calling_backward_reach_torch_in_measured_and_in_skipped_steps(folder):
    run(folder, """
        from distdl_jupyter.worker.step_times import recorder
        backward, one = torch.autograd.backward, torch.tensor(1.0)
        def raises(*args, **kwargs):
            try:
                backward(*args, **kwargs)
            except TypeError as error:
                return str(error)
        def gradients(call):
            optimizer.zero_grad(set_to_none=True)
            call()
            return [None if p.grad is None else p.grad.clone() for p in net.parameters()]
        def check():
            expected = gradients(lambda: loss().backward())
            everything = [
                lambda: backward(loss()), lambda: backward(tensors=(loss(),), grad_tensors=(one,)),
                lambda: backward(loss(), one, False, False), lambda: loss().backward(one, retain_graph=True),
                lambda: backward((loss(),), (one,), None, False, None),
            ]
            for call in everything:
                assert all(map(torch.equal, gradients(call), expected))
            for call in (
                lambda: loss().backward(inputs=[net.bias]), lambda: backward(loss(), inputs=[net.bias]),
                lambda: backward(loss(), None, None, False, None, [net.bias]),
            ):
                weight, bias = gradients(call)
                assert weight is None and torch.equal(bias, expected[1])
            assert "newer" in raises(loss(), newer=1)
            assert "positional" in raises(loss(), None, None, False, None, None, 1)
        detailed = []
        while len(detailed) < 200:
            if (is_detailed := recorder.is_detailed) not in detailed:
                check()
            loss().backward()
            optimizer.step()
            detailed.append(is_detailed)
        assert set(detailed) == {True, False}
    """)  # fmt: skip


class Out:
    def __init__(self):
        self.sent = []

    def send(self, _type, **fields):
        self.sent.append(fields)


def test_records_of_long_trainings_stand_for_more_steps(monkeypatch):
    out = Out()
    monkeypatch.setattr(step_times.channel, "get_channel", lambda: out)
    recorder = step_times.StepRecorder()
    recorder.is_enabled = True
    steps = 7 * step_times.RECORDS_PER_SIZE + 5
    for _ in range(steps):
        recorder.record_pass(is_forward=False)
        recorder.record_step()
    recorder.flush()
    at = 0
    for report in out.sent:
        assert report["first"] == at
        assert len(str(report)) < 3500
        at += len(report["records"]) * report["size"]
    assert at == 7 * step_times.RECORDS_PER_SIZE  # the next record is of 8 steps
    by_size = {1: 0, 2: 0, 4: 0}
    for report in out.sent:
        by_size[report["size"]] += len(report["records"])
    assert by_size == dict.fromkeys((1, 2, 4), step_times.RECORDS_PER_SIZE)


def test_a_forked_process_measures_nothing():
    step_times.recorder.is_enabled = True
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(int(step_times.recorder.is_enabled))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert step_times.recorder.is_enabled
    finally:
        step_times.recorder.is_enabled = False
