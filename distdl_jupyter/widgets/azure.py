"""The panel "Sign in to Azure" in a kernel: ``azure_sign_in()`` shows it as a cell's last value.

The page sends to its kernel the requests that JupyterLab's sidebar sends to the server; both use the same component.
"""

from __future__ import annotations

from html import escape

from distdl_jupyter.jobs.output import has_extension
from distdl_jupyter.views import azure
from distdl_jupyter.widgets.widget import PageWidget


class AzurePanel(PageWidget):
    """The panel. The text saved in the notebook does not contain the account."""

    def __repr__(self) -> str:
        return "Sign in to Azure: run this cell to show the sign-in."


def azure_sign_in() -> AzurePanel:
    """Return the panel that shows the Azure account and offers to sign in and out. It never shows a token.

    Front ends without the extension show the account as text.
    """
    if has_extension():
        return AzurePanel("azure", azure.CALLS)
    lines = [*azure.format_sign_in(azure.make_sign_in_view()), "", "To sign in: %dist_config azure credential=METHOD"]
    return AzurePanel("azure", value=f"<pre>{escape(chr(10).join(lines))}</pre>")
