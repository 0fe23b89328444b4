"""Which device a rank's torch begins with. No GPU is needed: the choice is a rule, its failure a note."""

from tests.worker import ranks


def test_a_gpu_that_is_not_there_is_a_note_and_no_error(folder):
    folder.cell("import torch\nint(torch.ones(3).sum())")
    ended = ranks.run(folder, CUDA_VISIBLE_DEVICES="77,78", DISTDL_GPU="78")
    assert ended.code == 0, ended.err
    assert folder.value() == 3
    (note,) = ended.of("note")
    assert "GPU 1 could not be selected in torch" in note["text"]
