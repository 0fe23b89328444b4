"""Syntax colors for cells whose first line is a magic of this package: the rest of such a cell is Python."""

from __future__ import annotations

from typing import Any, ClassVar

from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import bygroups, using
from pygments.lexers.python import PythonLexer
from pygments.token import Keyword, Operator, Text


class CellLexer(IPython3Lexer):
    """IPython's lexer, which leaves all of a cell with a cell magic uncolored, because it may be in any language."""

    name = "Cells of distdl_jupyter"
    aliases: ClassVar[list[str]] = []
    tokens: ClassVar[dict[str, Any]] = {
        **IPython3Lexer.tokens,
        "root": [
            (
                r"(?s)(\s*)(%%)(distributed|ranks|sweep)\b([^\n]*)(.*)",
                bygroups(Text, Operator, Keyword, Text, using(PythonLexer)),
            ),
            *IPython3Lexer.tokens["root"],
        ],
    }
