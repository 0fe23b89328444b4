"""The panel "Sign in to Azure" in a kernel: ``azure_sign_in()`` shows it as a cell's last value.

The page asks its kernel what JupyterLab's sidebar asks the server, and the same component draws both.
"""

from __future__ import annotations

from html import escape

from distdl_jupyter.jobs.output import has_extension
from distdl_jupyter.views import azure
from distdl_jupyter.widgets.widget import PageWidget


class AzurePanel(PageWidget):
    """The panel on the page. Its text, which a notebook keeps, names nobody."""

    def __repr__(self) -> str:
        return "Sign in to Azure: run this cell to show the sign-in."


def azure_sign_in() -> AzurePanel:
    """Return the panel that shows the Azure account and signs in and out. It never shows a token.

    Front ends without the extension show the account as text.
    """
    if has_extension():
        return AzurePanel("azure", azure.CALLS)
    lines = [*azure.sign_in_lines(azure.sign_in_view()), "", "To sign in: %dist_config azure credential=METHOD"]
    return AzurePanel("azure", value=f"<pre>{escape(chr(10).join(lines))}</pre>")
