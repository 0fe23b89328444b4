"""The Azure sign-in panel in a notebook: ``azure_sign_in()`` as a cell's last value displays it.

The page sends its requests to the kernel, while JupyterLab's sidebar sends them to the server.
"""

from __future__ import annotations

from html import escape

from distdl_jupyter.jobs.output import has_extension
from distdl_jupyter.views import azure
from distdl_jupyter.widgets.widget import PageWidget


class AzurePanel(PageWidget):
    """The sign-in panel. The text saved in the notebook does not contain the account."""

    def __repr__(self) -> str:
        return "Sign in to Azure: run this cell to show the sign-in."


def azure_sign_in() -> AzurePanel:
    """Return the panel to sign in to Azure and out of it. It shows the account, but never a token.

    Front ends without the extension show the account as text.
    """
    if has_extension():
        return AzurePanel("azure", azure.HANDLERS)
    lines = [*azure.format_sign_in(azure.make_sign_in_view()), "", "To sign in: %dist_config azure credential=METHOD"]
    return AzurePanel("azure", value=f"<pre>{escape(chr(10).join(lines))}</pre>")
