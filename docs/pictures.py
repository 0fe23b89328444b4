"""Pictures of the reader's theme: beside ``NAME.png`` a page shows ``NAME-dark.png`` where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.transforms import SphinxTransform


class DarkPictures(SphinxTransform):
    """Put the dark picture behind each light one; the theme's classes show one of them."""

    default_priority = 200

    def apply(self, **_: Any) -> None:
        """Look at each picture of the page."""
        page = Path(self.env.doc2path(self.env.docname))
        for light in list(self.document.findall(nodes.image)):
            uri = Path(light["uri"])
            dark = uri.with_stem(f"{uri.stem}-dark")
            if (page.parent / dark).exists():
                twin = light.copy()
                twin["uri"] = dark.as_posix()
                light["classes"].append("only-light")
                twin["classes"].append("only-dark")
                light.parent.insert(light.parent.index(light) + 1, twin)
