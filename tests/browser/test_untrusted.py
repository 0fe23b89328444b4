"""A notebook of somebody else is opened: nothing of it runs before its reader has trusted it.

JupyterLab restores the widgets that a notebook has saved without asking whether it is trusted. anywidget, where it is
installed, runs their code while it makes the models; it is not installed here, as for all who do not ask for it.
"""

from __future__ import annotations

from collections.abc import Callable

import nbformat
import pytest
from nbformat import v4
from playwright.sync_api import TimeoutError as NothingRan

from tests.browser.conftest import Book

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

#: Milliseconds after the kernel is there in which what is saved would have run.
TIMEOUT = 5_000
ESM = "window.distdlRan = true; export default { initialize() {}, render() {} };"


class CodeRanError(AssertionError):
    """Code of the notebook ran."""


def widget_state(esm: str) -> dict[str, object]:
    """Return the metadata of a notebook that has saved a widget of anywidget and one of ours, both with code."""
    models = {}
    for number, (module, model, view, version) in enumerate((
        ("anywidget", "AnyModel", "AnyView", "~0.11.*"), ("distdl-jupyter", "PanelModel", "job", "*"),
    )):  # fmt: skip
        state = {
            "_model_module": module, "_model_name": model, "_model_module_version": version, "_view_module": module,
            "_view_name": view, "_view_module_version": version, "_anywidget_id": "saved.Widget", "_esm": esm,
        }  # fmt: skip
        models[f"5f0c7d1e9ab25f0c7d1e9ab25f0c7d{number:02}"] = {
            "model_module": module, "model_module_version": version, "model_name": model, "state": state,
        }  # fmt: skip
    saved = {"version_major": 2, "version_minor": 0, "state": models}
    return {"application/vnd.jupyter.widget-state+json": saved}


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
    try:
        page.wait_for_function("() => window.distdlRan === true", timeout=TIMEOUT)
    except NothingRan:
        return
    raise CodeRanError("The notebook is not trusted, nothing was clicked, and its code ran.")
