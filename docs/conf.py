"""The site: ``make docs`` builds it without a network, with warnings as errors and its own links checked."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import cell_lexer  # noqa: E402
import figures  # noqa: E402
import links  # noqa: E402
import notebook_pages  # noqa: E402
import pictures  # noqa: E402
import reference  # noqa: E402

from distdl_jupyter import __version__  # noqa: E402

project = "distdl_jupyter"
version = release = __version__
copyright = "distdl_jupyter contributors"  # noqa: A001 - Sphinx's name
extensions = ["myst_nb"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
smartquotes = False
suppress_warnings = ["mystnb.unknown_mime_type", "myst.header"]

myst_enable_extensions = ["substitution"]
myst_heading_anchors = 3
myst_substitutions = figures.all_figures()
nb_execution_mode = "off"
# Nothing is loaded from elsewhere when a page is seen.
nb_ipywidgets_js = {}

html_theme = "pydata_sphinx_theme"
html_title = "distdl_jupyter"
html_static_path = ["_static"]
html_css_files = ["widgets.css", "site.css"]
html_js_files = ["embedded.js"]
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "show_prev_next": True,
    "back_to_top_button": False,
    "navigation_with_keys": False,
    "show_toc_level": 1,
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "default",
    "pygments_dark_style": "github-dark",
}
html_sidebars = {"index": [], "ja": [], "zh_TW": [], "changes": [], "coming-from/index": []}

reference.write(HERE / "reference")
notebook_pages.write(HERE / "notebooks", HERE / "_static" / "jobs")


def setup(app):
    """Color cells with magics, show pictures of the reader's theme, and check all links at the end."""
    for language in ("python", "ipython", "ipython3"):
        app.add_lexer(language, cell_lexer.CellLexer)
    app.add_transform(pictures.DarkPictures)
    app.connect("build-finished", links.check)
