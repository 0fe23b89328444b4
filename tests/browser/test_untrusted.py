"""A notebook of somebody else is opened: nothing of it runs before its reader has trusted it.

JupyterLab restores the widgets that a notebook has saved without asking whether it is trusted.
"""

from __future__ import annotations

from collections.abc import Callable

import nbformat
import pytest
from nbformat import v4

from tests.browser.conftest import Book

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

#: Milliseconds after the kernel is there in which what is saved would have run.
TIMEOUT = 5_000
ESM = "window.distdlRan = true; export default { initialize() {}, render() {} };"


def widget_state(esm: str) -> dict[str, object]:
    """Return the metadata of a notebook that has saved a widget of ours, with code."""
    model = {"model_module": "distdl-jupyter", "model_module_version": "*", "model_name": "PanelModel"}
    state = {"_view_module": "distdl-jupyter", "_view_module_version": "*", "_view_name": "job", "_esm": esm}
    models = {
        "5f0c7d1e9ab25f0c7d1e9ab25f0c7d00": {**model, "state": {**{f"_{k}": v for k, v in model.items()}, **state}}
    }
    return {"application/vnd.jupyter.widget-state+json": {"version_major": 2, "version_minor": 0, "state": models}}


@pytest.mark.full
def test_the_saved_widgets_of_an_untrusted_notebook_run_no_code(desk: Callable[..., Book]) -> None:
    book = desk(["1"])
    output = v4.new_output("display_data", data={"text/html": "<b>kept</b>", "text/plain": "kept"})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "widgets": widget_state(ESM)}
    cells = [v4.new_code_cell("1", execution_count=1, outputs=[output])]
    nbformat.write(v4.new_notebook(cells=cells, metadata=metadata), book.lab.root / "received.ipynb")
    book.open_desk("received.ipynb")
    book.kernel_idle()
    page = book.page
    assert page.evaluate("() => window.jupyterapp.shell.currentWidget.content.model.cells.get(0).trusted") is False
    page.wait_for_timeout(TIMEOUT)
    assert page.evaluate("() => window.distdlRan") is None, "nothing was clicked"
