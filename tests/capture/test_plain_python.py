"""A cell's text as plain Python: what IPython alone can run is refused with its line."""

import pytest

from distdl_jupyter.capture.cell import check_plain_python
from distdl_jupyter.core.errors import InvalidSpec


@pytest.mark.parametrize(
    ("code", "line", "word"),
    [
        ("x = 1\n!ls -l", 3, "`!ls -l`, is a shell command"),
        ("files = !ls", 2, "`files = !ls`, is a shell command"),
        ("x = 1\n\n%timeit x", 4, "`%timeit x`, is an IPython magic"),
        ("for i in range(2):\n    %time f(i)", 3, "`%time f(i)`, is an IPython magic"),
        ("%%time\nf()", 2, "`%%time`, is an IPython magic"),
        ("y = %env HOME", 2, "`y = %env HOME`, is an IPython magic"),
        ("torch.save?", 2, "`torch.save?`, is an IPython help request"),
        ("x = 1\nget_ipython().run_line_magic('pwd', '')", 3, "which does not exist on ranks"),
        ("x = 1\nawait f()", 3, "of the cell uses await outside a function"),
        ("\n\n!ls", 4, "`!ls`, is a shell command"),
        ("async for x in y: pass", 2, "of the cell uses await outside a function"),
        ("a = [\n  x async for x in y]", 2, "of the cell uses await outside a function"),
    ],
)
def test_what_ranks_cannot_run_is_named_with_its_line(code, line, word):
    with pytest.raises(InvalidSpec) as caught:
        check_plain_python(code, first_line=2)
    assert f"Line {line} of the cell" in str(caught.value)
    assert word in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "code",
    [
        "x = 7 % 3\ny = 'a!b'\nz = '?'\n'%s' % x",
        "async def f():\n    await g()\nimport asyncio",
        "try:\n    get_ipython()\n    inside = True\nexcept NameError:\n    inside = False",
        "'''\n%time\n!ls\n'''",
        "pattern = '\\d'",
        "",
    ],
)
def test_plain_python_stays_as_it_is(code):
    assert check_plain_python(code) == code


def test_common_indentation_is_taken_off():
    assert check_plain_python("  x = 1\n  y = 2\n").strip() == "x = 1\ny = 2"


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x = 1\ny = = 2", 6),
        ("return 3", 5),
        ("x = (1,\n", 5),
        ("def f(:\n", 5),
        ("\n\nx = =", 7),
        ("\x8b\x85 x", 5),
    ],
)
def test_a_syntax_error_carries_the_cells_line(code, line):
    with pytest.raises(SyntaxError) as caught:
        check_plain_python(code, first_line=5, filename="<cell 9>")
    assert caught.value.lineno == line
    assert caught.value.filename == "<cell 9>"
