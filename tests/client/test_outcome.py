"""How the rank that failed first ended, as the error of its job tells it."""

import pytest

from distdl_jupyter.core.rank import RankView
from distdl_jupyter.outcome import _ending

EXIT, RAISED = {"type": "SystemExit", "message": "3"}, {"type": "KeyError", "message": "'label'"}


@pytest.mark.parametrize(
    ("error", "code", "signal", "told"),
    [
        pytest.param(EXIT, 3, None, (3, None), id="its own code"),
        pytest.param(EXIT, 1, None, (3, None), id="stopped behind mpirun"),
        pytest.param(EXIT, None, "TERM", (3, None), id="stopped while it was slow to go"),
        pytest.param(EXIT, None, "SEGV", (None, "SEGV"), id="crashed on its way out"),
        pytest.param(RAISED, None, "KILL", (1, None), id="raised and then stopped"),
        pytest.param(RAISED, 1, None, (1, None), id="raised"),
        pytest.param(None, 7, None, (7, None), id="a code without a word"),
        pytest.param(None, None, "KILL", (None, "KILL"), id="killed"),
    ],
)
def test_a_stop_is_not_how_a_rank_failed(error, code, signal, told):
    ending = _ending(RankView(rank=0, error=error, code=code, signal=signal))
    assert (ending["exit_code"], ending["signal"]) == told
