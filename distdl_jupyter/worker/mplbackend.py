"""matplotlib's backend in a rank: ``plt.show()`` sends the open figures to the job and closes them, as in a notebook.

matplotlib imports it by name (``MPLBACKEND``, see ``report.install_hooks``) when the first figure is created.
"""

from __future__ import annotations

from typing import Any

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase as FigureManager
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

from distdl_jupyter.worker import report

__all__ = ["FigureCanvas", "FigureManager", "show"]


def show(*_positional: Any, **_options: Any) -> None:
    """Show all open figures; options such as ``block`` have no effect."""
    for manager in Gcf.get_all_fig_managers():
        report.show_figure(manager.canvas.figure)
    Gcf.destroy_all()
