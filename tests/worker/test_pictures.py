"""``display(figure)`` and ``plt.show()`` in real ranks: pictures arrive whole, all else is text."""

import base64
import io
import struct
import zlib

import pytest

from distdl_jupyter.worker import report
from tests.worker import ranks

SHOWN = """
class Shown:
    def __init__(self, **forms):
        self.forms = forms
    def __repr__(self):
        return f"Shown({', '.join(self.forms)})"
    def _repr_png_(self):
        return self.forms.get("png")
    def _repr_jpeg_(self):
        return self.forms.get("jpeg")
    def _repr_html_(self):
        return "<script>alert(1)</script>"
"""


def png(width=640, height=480, more=b""):
    """Return a PNG of one colour, with ``more`` bytes that are no pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head, rows = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0), bytes((width + 1) * height)
    parts = [chunk(b"IHDR", head), chunk(b"teXt", more), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def jpeg(width, height):
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "JPEG")
    return file.getvalue()


def received(ended):
    """Return the pictures that a rank's reports are parts of."""
    found = []
    for part in ended.of("picture"):
        if part["begin"] == 0:
            found.append("")
        assert part["begin"] == len(found[-1])
        found[-1] += part["data"]
        assert len(found[-1]) <= part["of"]
    return [base64.b64decode(text, validate=True) for text in found]


def test_what_offers_a_picture_is_sent_and_all_else_is_printed(folder):
    large = png(more=bytes(range(256)) * 200)
    code = (
        SHOWN
        + """
display("before", 1, Shown(png=large), "between", Shown(jpeg=photo), Shown(png=b"<svg onload=alert(1)>"), Shown, end=9)
from IPython.display import Image, display as shown
shown(Image(data=large), {"a": 1})
shown({"image/png": large, "text/plain": "no"}, raw=True)
shown({"text/html": "<b>", "text/plain": "plain"}, raw=True)
"""
    )
    ended = ranks.run(folder.cell(code, values={"large": large, "photo": jpeg(80, 60)}))
    assert ended.code == 0, ended.err
    assert received(ended) == [large, jpeg(80, 60), large, large]
    assert ended.out == "before\n1\nbetween\nShown(png)\n<class '__main__.Shown'>\n{'a': 1}\nplain\n"


def test_a_picture_that_is_too_large_or_one_too_many_is_one_line(folder):
    code = (
        SHOWN
        + """
display(Shown(png=large))
display(Shown(png=large, jpeg=photo))
for _ in range(110):
    display(Shown(png=small))
"""
    )
    values = {"large": png(more=bytes(2_100_000)), "photo": jpeg(80, 60), "small": png(8, 8)}
    ended = ranks.run(folder.cell(code, values=values))
    assert len(received(ended)) == 100
    assert received(ended)[0] == values["photo"]
    assert ended.out.splitlines() == [
        "[image omitted: its size is 2.1 MB, but the limit is 2 MB; use a smaller figure or a lower dpi]",
        "[This rank has shown 100 images; later ones are omitted.]",
    ]


@pytest.mark.parametrize(("chosen", "many"), [("", 2), ("Agg", 0)])
def test_plt_show_sends_the_open_figures_and_closes_them(folder, chosen, many):
    pytest.importorskip("matplotlib")
    code = """
import matplotlib.pyplot as plt
plt.plot([1, 2]); plt.figure(figsize=(2, 1)); plt.plot([2, 1])
plt.show(); plt.show(block=False)
figure, _ = plt.subplots(figsize=(3, 1))
display(figure)
"""
    ended = ranks.run(folder.cell(code), MPLBACKEND=chosen)
    assert ended.code == 0, ended.err
    sizes = [*[(640, 480), (200, 100)][:many], (300, 100)]
    assert [report.detect_format(data)[1:] for data in received(ended)] == sizes


def test_matplotlib_is_not_imported_for_it(folder):
    folder.cell("import os, sys\n'matplotlib' in sys.modules, os.environ['MPLBACKEND']")
    ended = ranks.run(folder, MPLBACKEND="")
    assert folder.value() == (False, "module://distdl_jupyter.worker.mplbackend"), ended.err


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (png(3, 2), ("png", 3, 2)),
        (png(3, 2)[:20], None),
        (jpeg(5, 4), ("jpeg", 5, 4)),
        (jpeg(5, 4)[:9], None),
        (b"\xff\xd8\xff\xff\xff", None),
        (b"GIF89a", None),
        (b"<svg/>", None),
        (b"", None),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR" + struct.pack(">II", 60_000, 60_000), None),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR" + struct.pack(">II", 0, 9), None),
    ],
)  # fmt: skip
def test_a_picture_is_known_by_its_bytes(data, form):
    assert report.detect_format(data) == form
