"""What ranks show with ``display``: in the cell, in a panel, on the job's page, in the saved notebook."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.browser import pages
from tests.browser.conftest import Book
from tests.conftest import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

SHOW = """%%distributed -p 2 -b torch -o job
import os, struct, zlib
rank = int(os.environ["RANK"])

class Square:
    def _repr_png_(self):
        def chunk(kind, content):
            return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        size = 80 + 20 * rank
        rows = (b"\\0" + bytes([90 * rank, 120, 200]) * size) * size
        head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
        parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
        return b"\\x89PNG\\r\\n\\x1a\\n" + b"".join(parts)

print("before")
display(Square())
print("after")
"""

#: Of the form of an id, and of no job.
NOBODY = "20200101-000000-aaaaa"


def shown(where: Locator) -> list[int]:
    """Wait for two pictures and return their widths, as the page has decoded them."""
    images = where.locator(".dd-picture img, img[alt^=picture]")
    expect(images).to_have_count(2)
    widths = [
        image.evaluate(
            """async (image) => {
                while (!image.complete || !image.src) await new Promise(requestAnimationFrame);
                await image.decode();
                return image.naturalWidth;
            }"""
        )
        for image in images.all()
    ]
    return sorted(widths)


@pytest.mark.full
def test_a_picture_of_each_rank_is_seen_wherever_the_job_is(desk: Callable[..., Book]) -> None:
    book = desk(["%load_ext distdl_jupyter", SHOW, "from distdl_jupyter import panel\npanel(job)"], height=1500)
    for number in (0, 1):
        book.run(number)
    cell = book.output(1)
    pages.says(cell, "Completed")
    assert shown(cell) == [80, 100]
    expect(cell.locator(".dd-picture").first).to_contain_text(re.compile(r"picture 1, rank [01], \d\d:"))
    line = pages.lines(cell).filter(has_text=re.compile(r"^\[picture \d: 80×80\]$"))
    line.click()
    expect(cell.locator(".dd-log-whole img")).to_have_js_property("naturalWidth", 80)
    book.run(2)
    assert shown(book.output(2)) == [80, 100]

    def pictures_are_saved() -> bool:
        book.save()
        html = json.loads((book.lab.root / book.name).read_text())["cells"][1]["outputs"][0]["data"]["text/html"]
        return "".join(html).count("data:image/png;base64,") == 2

    # The kernel updates the saved page once a second.
    wait_for(pictures_are_saved, what="the pictures in the saved page")
    saved = json.loads((book.lab.root / book.name).read_text())
    id_ = saved["cells"][1]["outputs"][0]["data"]["application/vnd.distdl.job+json"]["id"]
    page = book.open_job(id_)
    assert shown(page) == [80, 100]
    first = page.locator(".dd-picture").first
    first.click()
    expect(first).to_have_attribute("aria-pressed", "true")
    assert not book.errors
    # On a server that does not know the job, and does not trust the notebook, it shows what it has kept.
    saved["cells"][1]["outputs"][0]["data"]["application/vnd.distdl.job+json"]["id"] = NOBODY
    (book.lab.root / f"other-{book.name}").write_text(json.dumps(saved))
    book.open_desk(f"other-{book.name}")
    expect(book.output(1)).to_contain_text("Saved")
    assert shown(book.output(1)) == [80, 100]
