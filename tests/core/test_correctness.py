"""The comparison of a check, without any job: records as ranks write them."""

import copy

import pytest

from distdl_jupyter.core.correctness import compare

NAMES = ["body.weight", "body.bias"]


def tensors(values):
    return [[str(value), [float(value)]] for value in values]


def step(samples, gradients, *, weights=(5.0, 2.0), rate=0.1, random=False):
    """One step of one optimizer with two weights of one element each."""
    after = [w - rate * g for w, g in zip(weights, gradients, strict=True)]
    return {
        "batches": {"0": {"pass": 0, "samples": list(samples)}},
        "inputs": [], "random": random, "unsynced": None, "local": False,
        "optimizers": {"0": {
            "rate": rate, "before": tensors(weights), "gradients": tensors(gradients), "after": tensors(after),
        }},
    }  # fmt: skip


def rank(number, *steps, **fields):
    lines = {"0": ["train.py", 5], "forward": ["train.py", 6], "backward": ["train.py", 7]}
    return {"rank": number, "steps": list(steps), "names": {"0": NAMES}, "shapes": {"0": [[1], [1]]},
            "layers": [], "loaders": {"0": {}}, "lines": lines, "is_half": False, **fields}  # fmt: skip


RIGHT = [rank(0, step("ab", (3, 4))), rank(1, step("cd", (3, 4)))]
ONE = rank(0, step("abcd", (3, 4)), loaders={"0": {"own_size": 4}})


def changed(ranks=RIGHT, **changes):
    """Return the ranks with other fields of the first optimizer of their first step."""
    found = copy.deepcopy(ranks)
    for name, values in changes.items():
        for one, value in zip(found, values, strict=True):
            one["steps"][0]["optimizers"]["0"][name] = value
    return found


def codes(ranks, one=ONE):
    return [found.code for found in compare(ranks, one).findings]


def test_ranks_that_do_as_one_process_does_have_no_findings():
    found = compare(RIGHT, ONE)
    assert not found.findings
    assert found.is_right
    assert len(found.compared) == 4
    assert str(found).startswith("No mistake found in 1 step of 2 ranks.\nCompared: the samples of each")


def test_a_sum_names_factor_and_line():
    summed = [rank(n, step(s, (6, 8))) for n, s in enumerate(("ab", "cd"))]
    (found,) = compare(summed, ONE).findings
    assert (found.code, found.level, found.step, found.size) == ("gradients-scaled", "error", 0, 1.0)
    assert "2 times those of one process" in found.text
    assert "/= dist.get_world_size()" in found.example
    assert "op=hvd.Average" in found.example


def test_other_factors_are_named_too():
    one = rank(0, step("abcd", (6, 8)))
    (found,) = compare(RIGHT, one).findings
    assert found.code == "gradients-scaled"
    assert "gradients are 0.5 times those of one process" in found.text
    assert "instead of summing them" in found.remedy
    assert codes(RIGHT, rank(0, step("abcd", (9, 12)))) == ["gradients-scaled"]


def test_gradients_of_own_samples_are_named_with_their_tensor_and_hide_what_follows():
    apart = [rank(0, step("ab", (2, 4))), rank(1, step("cd", (4, 4)))]
    (found,) = compare(apart, ONE).findings
    assert (found.code, found.tensor, found.size) == ("gradients-not-averaged", "body.weight", 0.5)
    assert "1 of 2 tensors differ, body.weight the most (50 %)" in found.text


def test_rounding_is_no_difference():
    close = changed(gradients=[tensors((3.0, 4.0)), tensors((3.0 + 1e-6, 4.0))])
    assert codes(close) == []


def test_weights_that_are_averaged_after_the_step_are_not_compared():
    apart = changed([rank(0, step("ab", (2, 4))), rank(1, step("cd", (4, 4)))], after=[tensors((1, 2))] * 2)
    found = compare(apart, ONE)
    assert not found.findings
    assert "have the same weights later" in found.left_out[0]


def test_other_weights_at_the_start_are_the_only_finding():
    apart = changed(before=[tensors((5, 2)), tensors((6, 2))], after=[tensors((1, 2)), tensors((3, 2))])
    (found,) = compare(apart, ONE).findings
    assert (found.code, found.tensor, round(found.size, 3)) == ("different-start", "body.weight", 0.167)


def test_ranks_that_depart_by_their_rates_are_told_by_these():
    apart = [rank(0, step("ab", (3, 4)), step("ef", (1, 1))), rank(1, step("cd", (3, 4), rate=0.2), step("gh", (2, 2)))]
    apart[1]["steps"][1]["optimizers"]["0"]["before"] = tensors((8, 9))
    found = compare([apart[0], {**apart[1], "steps": apart[1]["steps"][:1]}], ONE).findings
    assert [one.code for one in found] == ["weights-depart"]
    assert "0.1 and 0.2" in found[0].text


def test_the_same_samples_are_found_by_content_and_by_what_a_pass_has():
    (found,) = compare([RIGHT[0], rank(1, step("ab", (3, 4)))], None).findings
    assert (found.code, found.step) == ("same-samples", 0)
    assert "2 of 2 samples" in found.text


def reads(found, *, ranks=RIGHT, **about):
    """Return ranks whose loaders go through 8 samples in 4 batches; ``found``: what each rank reads by index."""
    return [{**one, "loaders": {"0": {"samples": 8, "batches": 4, "read": read, "epochs": [None], **about}}}
            for one, read in zip(ranks, found, strict=True)]  # fmt: skip


def test_the_same_data_set_on_each_rank_is_found_by_samples_at_the_same_index():
    assert codes(reads(["wxyz", "wxyz"])) == ["same-samples"]
    assert codes(reads(["wxyz", "klmn"])) == []  # each rank has a data set of its own
    assert codes(reads(["wxyz", "wxyz"], batches=2)) == []  # a sampler divides it


def test_data_sets_of_a_whole_epoch_without_a_common_sample_are_divided():
    ranks = [rank(0, step("abcd", (3, 4))), rank(1, step("efgh", (3, 4)))]
    assert codes(reads(["", ""], ranks=ranks, samples=4, batches=1), rank(0, step("abcdefgh", (3, 4)))) == []


def test_samples_that_repeat_on_a_rank_are_not_compared():
    found = compare([rank(0, step("aabb", (3, 4))), rank(1, step("abab", (3, 4)))], rank(0, step("aaaabbbb", (3, 4))))
    assert not found.findings
    assert any("many of a rank are equal" in text for text in found.left_out)


@pytest.mark.parametrize(
    ("about", "remedy"),
    [
        ({"iterable": True}, "get_worker_info()"),
        ({"iterable": True}, "split_dataset_by_node("),
        ({}, "num_replicas=size"),
        ({}, "inputs[rank::size]"),
    ],
)
def test_the_remedy_for_common_samples_fits_the_data_set(about, remedy):
    same = [RIGHT[0], rank(1, step("ab", (3, 4)))]
    loaders = {"0": {"line": ["train.py", 7], **about}}
    (found,) = compare([{**one, "loaders": loaders} for one in same]).findings
    assert remedy in found.example
    assert (found.code, found.file, found.line) == ("same-samples", "train.py", 7)


def test_workers_that_each_read_the_whole_stream_are_found():
    loaders = {"0": {"iterable": True, "workers": 2}}
    ranks = [rank(0, step("ab", (3, 4)), step("ab", (3, 4))), rank(1, step("cd", (3, 4)), step("cd", (3, 4)))]
    assert codes([{**one, "loaders": loaders} for one in ranks], None) == ["same-samples"]
    assert codes([{**one, "loaders": {"0": {}}} for one in ranks], None) == []


def test_a_last_backward_pass_without_averaging_is_told_with_its_line():
    apart = [rank(0, step("ab", (2, 4))), rank(1, step("cd", (4, 4)))]
    for one in apart:
        one["steps"][0]["unsynced"] = ["Cell [4]", 14]
    (found,) = compare(apart, ONE).findings
    assert (found.code, found.file, found.line) == ("no-sync-on-last-backward", "Cell [4]", 14)
    assert "DistributedDataParallel(model)" not in found.example
    shown = compare(apart, ONE)
    assert "Cell [4], line 14" in str(shown)
    assert "Cell [4], line 14" in shown._repr_html_()


def test_steps_inside_no_sync_and_weights_averaged_later_are_no_mistake():
    apart = [rank(0, step("ab", (2, 4))), rank(1, step("cd", (4, 4)))]
    local = copy.deepcopy(apart)
    for one in local:
        one["steps"][0] |= {"unsynced": ["train.py", 6], "local": True}
    assert codes(local) == []
    assert codes([{**one, "averages_weights": True} for one in apart]) == []
    again = [rank(0, step("ab", (2, 4)), step("ef", (1, 1))), rank(1, step("cd", (4, 4)), step("gh", (1, 1)))]
    assert codes(again) == []
    assert codes(apart) == ["gradients-not-averaged"]


def test_a_trainer_on_one_process_is_the_only_finding():
    trainer = {"name": "Trainer", "processes": 1, "line": ["train.py", 3], "accelerator": "cpu", "devices": 2}
    same = [{**RIGHT[0], "trainer": trainer}, {**rank(1, step("ab", (2, 4))), "trainer": trainer}]
    (found,) = compare(same, ONE).findings
    assert (found.code, found.line) == ("trainer-alone", 3)
    assert found.example == 'Trainer(accelerator="cpu", devices=2, strategy="ddp")'
    right = [{**one, "trainer": {**trainer, "processes": 2}} for one in RIGHT]
    assert codes(right) == []


@pytest.mark.parametrize(
    "example", ["init_process_group()", "DistributedDataParallel(model)", "hvd.DistributedOptimizer("]
)
def test_the_remedy_for_gradients_names_both_libraries(example):
    apart = [rank(0, step("ab", (2, 4))), rank(1, step("cd", (4, 4)))]
    (found,) = compare(apart, ONE).findings
    assert (found.code, found.line) == ("gradients-not-averaged", 7)
    assert example in found.example


def test_a_step_with_other_samples_is_not_compared_with_one_process():
    ranks = [rank(0, step("ab", (3, 4)), step("ef", (1, 9))), rank(1, step("cd", (3, 4)), step("gh", (1, 9)))]
    one = rank(0, step("abcd", (3, 4)), step("efxy", (7, 1)))
    found = compare(ranks, one)
    assert not found.findings
    assert "in 1 step (identical)" in found.compared[-1]


def test_the_same_random_numbers_on_all_ranks_are_information():
    same = reads(["wxyz", "klmn"], draws=["torch"], random={"torch": "s", "random": "t"}, line=["train.py", 9])
    (found,) = compare(same, ONE).findings
    assert (found.code, found.level, found.line) == ("same-augmentation", "info", 9)
    assert "torch.manual_seed(seed + rank)" in found.example
    same[1]["loaders"]["0"]["random"] = {"torch": "other", "random": "t"}
    assert codes(same) == []
    workers = reads(["wxyz", "klmn"], draws=["numpy"], random={"workers": "1"}, workers=2)
    assert codes(workers) == ["same-augmentation"]


def test_an_order_that_does_not_change_is_found_by_the_sampler():
    about = {
        "samples": 8,
        "batches": 2,
        "sampler": "DistributedSampler",
        "shuffles": True,
        "set_epoch": 0,
        "epochs": [0],
    }
    assert codes([{**one, "loaders": {"0": about}} for one in RIGHT]) == ["no-set-epoch"]
    assert codes([{**one, "loaders": {"0": {**about, "set_epoch": 1}}} for one in RIGHT]) == []
    twice = {**about, "set_epoch": 1, "epochs": [1, 1]}
    assert codes([{**one, "loaders": {"0": twice}} for one in RIGHT]) == ["no-set-epoch"]


def test_batch_statistics_are_usual_and_other_differences_are_not():
    other = rank(0, step("abcd", (3, 1)))
    (found,) = compare([{**one, "layers": ["BatchNorm1d"]} for one in RIGHT], other).findings
    assert (found.code, found.level, found.tensor) == ("batch-norm", "info", "body.bias")
    assert codes(RIGHT, other) == ["gradients-differ"]


@pytest.mark.parametrize(
    ("ranks", "one", "why"),
    [
        (RIGHT, rank(0, step("abcd", (1, 1), random=True)), "draws random numbers"),
        (RIGHT, rank(0, step("abce", (1, 1))), "it had other samples"),
        (RIGHT, rank(0, step("abcd", (1, 1), weights=(1.0, 1.0))), "it started with other weights"),
        ([RIGHT[0], rank(1, step("c", (3, 4)))], ONE, "have the same size on all ranks"),
        (RIGHT, rank(0), "made no step"),
        (RIGHT, {**ONE, "problem": "the batches cannot be put together"}, "the batches cannot be put together"),
        ([{**one, "sharded": "DeepSpeed's ZeRO"} for one in RIGHT], ONE, "are sharded across ranks"),
        ([RIGHT[0], {**RIGHT[1], "shapes": {"0": [[2], [1]]}}], ONE, "pipeline or tensor parallel"),
        ([rank(0), rank(1)], ONE, "No step of a torch optimizer was recorded"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_said_and_no_finding(ranks, one, why):
    found = compare(ranks, one)
    assert not found.findings
    assert any(why in text for text in found.left_out), found.left_out


def test_a_rate_that_stays_with_more_samples_is_information():
    one = {**ONE, "loaders": {"0": {"own_size": 2}}}
    (found,) = compare(RIGHT, one).findings
    assert (found.code, found.level) == ("rate-not-scaled", "info")
    assert "suggests 0.2" in found.remedy
    shown = compare(RIGHT, one)
    assert shown.is_right
    assert "lr=0.1 * world_size)</pre>" in shown._repr_html_()
