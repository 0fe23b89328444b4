"""DeepSpeed trains with the config that the job was given; one that cannot work is refused before the start."""

import importlib.util
import json
import textwrap

import pytest

from distdl_jupyter.api.submit_process import submit_source
from distdl_jupyter.backends.deepspeed import CONFIG_VARIABLE
from distdl_jupyter.core.errors import InvalidSpec
from tests.backends.test_plans import plan

needs_deepspeed = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
TRAINS = """
    import deepspeed, os, torch
    from pathlib import Path
    {quick}
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    torch.manual_seed(int(os.environ["RANK"]) + 1)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), optimizer=torch.optim.SGD(model.parameters(), lr=0.5){own}
    )
    losses = []
    for _ in range(2 * engine.gradient_accumulation_steps()):
        loss = engine(torch.randn(engine.train_micro_batch_size_per_gpu(), 8).to(engine.communication_data_type
                      if engine.bfloat16_enabled() else torch.float32)).float().pow(2).mean()
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(Path(os.environ["DISTDL_JOB_DIR"], "outputs", "kept"))
    {{"stage": engine.zero_optimization_stage(), "batch": engine.train_batch_size(), "losses": losses}}
"""
#: Without what DeepSpeed compiles for its own collectives, which takes a minute.
QUICK = 'deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False'


def config(**options):
    return json.loads(plan("deepspeed", **options).environments[0][CONFIG_VARIABLE])


def submit(own="", quick=QUICK, **options):
    code = textwrap.dedent(TRAINS).strip().format(own=own, quick=quick)
    return submit_source(code, options={"distributed_backend": "deepspeed", "process_count_per_node": 2, **options})


def notes(job):
    return [note["text"] for note in job.view().notes]


# the config -------------------------------------------------------------------------------------


def test_a_job_without_any_option_leaves_the_config_to_the_code():
    assert CONFIG_VARIABLE not in plan("deepspeed").environments[0]


def test_ranks_meet_as_those_of_torch():
    assert plan("deepspeed").environments[1] == plan("torch").environments[1]


def test_the_small_options_make_a_config():
    assert config(zero_stage=2, micro_batch=4, gradient_accumulation=2, precision="bf16", offload="optimizer") == {
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
    }


@pytest.mark.parametrize("way", ["dict", "text", "file"])
def test_a_config_is_a_dict_or_json_or_a_file_and_options_go_before_it(way, tmp_path):
    whole = {"train_batch_size": 8, "zero_optimization": {"stage": 1, "overlap_comm": False}, "fp16": {"enabled": True}}
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(whole))
    given_ = {"dict": whole, "text": json.dumps(whole), "file": str(file)}[way]
    found = config(deepspeed_config=given_, zero_stage=3, precision="bf16")
    assert found["zero_optimization"] == {"stage": 3, "overlap_comm": False}
    assert (found["bf16"], found["fp16"]) == ({"enabled": True}, {"enabled": False})
    assert found["train_batch_size"] == 8


def test_a_job_keeps_what_its_file_held(tmp_path, distdl_home):
    """It may wait for hours, or be run again, when the file has long become another."""
    file = tmp_path / "ds.json"
    file.write_text('{"train_batch_size": 6}')
    job = submit_source("1", options={"distributed_backend": "deepspeed", "process_count_per_node": 2,
                                      "deepspeed_config": str(file)})  # fmt: skip
    file.unlink()
    assert json.loads(job.spec.backend_options["deepspeed_config"]) == {"train_batch_size": 6}
    job.cancel()


@pytest.mark.parametrize(
    ("options", "said", "remedy"),
    [
        ({"deepspeed_config": "/no/ds.json"}, "Cannot read the DeepSpeed config /no/ds.json: No such file or "
         "directory.", "Set deepspeed_config to the path of a JSON file, to JSON, or to a dict."),
        ({"deepspeed_config": "{"},
         "The DeepSpeed config is not valid JSON: Expecting property name enclosed in double quotes: "
         "line 1 column 2 (char 1).", "Correct the JSON at this line and column."),
        ({"deepspeed_config": {"a": {1}}},
         "The DeepSpeed config is not valid JSON: Object of type set is not JSON "
         "serializable.", "Correct the JSON at this line and column."),
        ({"zero_stage": 4, "micro_batch": 1}, "zero_stage is 4, but must be 0, 1, 2 or 3.",
         "Set zero_stage to 0, 1, 2 or 3."),
        ({"zero_stage": 2}, "The DeepSpeed config does not set the batch size.",
         "Set micro_batch to the number of samples per rank."),
        ({"zero_stage": 2, "micro_batch": 1, "offload": "optimizer and parameters"},
         "offload_param needs ZeRO stage 3, but the stage is 2.", "Set zero_stage to 3, or remove the offload."),
        ({"micro_batch": 1, "offload": "optimizer"}, "offload_optimizer needs ZeRO stage 1, but the stage is 0.",
         "Set zero_stage to 1, or remove the offload."),
        ({"deepspeed_config": {"train_batch_size": 4, "bf16": {"enabled": True}, "fp16": {"enabled": True}}},
         "The DeepSpeed config enables both bf16 and fp16.", "Disable one of them."),
        ({"micro_batch": 0}, "train_micro_batch_size_per_gpu is 0, but must be an integer of at least 1.",
         "Set train_micro_batch_size_per_gpu to an integer of at least 1."),
        ({"deepspeed_config": {"train_batch_size": 32}, "micro_batch": 4, "gradient_accumulation": 1},
         "train_batch_size is 32, but 4 samples a rank x 1 batch a step x 2 ranks is 8.",
         "Set train_batch_size to 8, or remove it."),
        ({"deepspeed_config": {"train_batch_size": 30}, "micro_batch": 4},
         "train_batch_size is 30, which is not a multiple of 4 samples a rank x 2 ranks.",
         "Set train_batch_size to 24 or 32."),
        ({"deepspeed_config": {"train_batch_size": 1}},
         "train_batch_size is 1, which is not a multiple of 1 batch a step x 2 ranks.", "Set train_batch_size to 2."),
    ],
)  # fmt: skip
def test_a_config_that_cannot_work_is_refused_in_one_sentence(options, said, remedy):
    with pytest.raises(InvalidSpec) as caught:
        plan("deepspeed", **options)
    assert (caught.value.message, caught.value.hint) == (said, remedy)


@pytest.mark.parametrize("more", [{"tensor_parallel": {"autotp_size": 2}}, {"gradient_accumulation_steps": "auto"}])
def test_a_batch_that_depends_on_more_than_the_number_of_ranks_is_left_to_deepspeed(more):
    assert config(deepspeed_config={"train_batch_size": 3, "train_micro_batch_size_per_gpu": 3, **more})


# jobs -------------------------------------------------------------------------------------------


@needs_deepspeed
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "options",
    [
        {"zero_stage": 2, "micro_batch": 4, "gradient_accumulation": 2},
        pytest.param({"zero_stage": 3, "micro_batch": 4, "gradient_accumulation": 2}, marks=pytest.mark.full),
        pytest.param(
            {"deepspeed_config": {"train_batch_size": 16, "gradient_accumulation_steps": 2}, "zero_stage": 2,
             "precision": "bf16"}, marks=pytest.mark.full),
    ],
)  # fmt: skip
@pytest.mark.readme("deepspeed")
def test_ranks_train_with_the_jobs_config_and_their_losses_are_picked_up(distdl_home, options):
    job = submit(**options)
    results = job.results(timeout=240)
    stage = options.get("zero_stage")
    assert [(one["stage"], one["batch"]) for one in results] == [(stage, 16)] * 2
    batch = f"DeepSpeed with ZeRO stage {stage}: 16 samples a step, 4 samples a rank x 2 batches a step x 2 ranks."
    assert batch in notes(job)
    found = job.metrics()
    for rank, result in enumerate(results):
        own = found[found["rank"] == rank].sort_values("step")
        first, second, third, fourth = result["losses"]
        assert list(own["step"]) == [1, 2]
        assert list(own["loss"]) == pytest.approx([(first + second) / 2, (third + fourth) / 2], rel=1e-5)
        assert list(own["lr"]) == [0.5, 0.5]
    kept = job.folder.outputs / "kept"
    assert len(list(kept.glob("global_step2/*.pt"))) >= 2


@needs_deepspeed
@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_build_that_was_killed_stops_nobody_and_a_config_of_the_code_wins(distdl_home, tmp_path):
    """``lock`` is what torch leaves behind; every process that sees it would wait for ever."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    own = ', config={"train_micro_batch_size_per_gpu": 3}'
    job = submit(own=own, quick="", micro_batch=4, environment_variables=environment)
    assert [one["batch"] for one in job.results(timeout=300)] == [6, 6]
    assert any(text.startswith("DeepSpeed is compiling deepspeed_shm_comm") for text in notes(job))
    assert "The code passes its own DeepSpeed config, so the job's config is not used." in notes(job)
    (built,) = tmp_path.glob("distdl/torch_extensions/*/deepspeed_shm_comm")
    (built / "lock").touch()
    job = submit(own=own, quick="", environment_variables=environment)
    assert [one["batch"] for one in job.results(timeout=100)] == [6, 6]
    assert not any("compiles" in text for text in notes(job))
