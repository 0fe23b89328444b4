"""A message in the form links to the entry of its code in the documentation."""

import functools
import re
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect

from tests.browser import pages
from tests.docs.blocks import DOCS

sys.path.insert(0, str(DOCS))
import reference

pytest_plugins = ("tests.browser.static_page",)
pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]


@pytest.mark.full
def test_an_error_in_the_form_leads_to_its_entry_and_none_does_without_the_setting(static_page, monkeypatch, tmp_path):
    folder = tmp_path / "site" / "reference"
    folder.mkdir(parents=True)
    anchors = re.findall(r"(?m)^\(([a-z0-9-]+)\)=$", reference.troubleshooting())
    (folder / "troubleshooting.html").write_text("".join(f'<h3 id="{one}">{one}</h3>' for one in anchors))
    serve = functools.partial(SimpleHTTPRequestHandler, directory=folder.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        book = static_page(["def train(): pass"])
        for number, (address, links) in enumerate(
            [(f"http://127.0.0.1:{server.server_port}/", 1), ("", 0), ("javascript:alert(1)", 0)]
        ):
            monkeypatch.setenv("DISTDL_DOCS", address)
            book.page.evaluate("delete globalThis[Symbol.for('distdl-jupyter.docs')]")
            book.run("from distdl_jupyter import launcher\nlauncher(train, process_count_per_node=2)")
            form = pages.form(book.page).nth(number)
            form.get_by_role("radio", name="plain").click()
            expect(form).to_contain_text("1 error")
            form.get_by_role("button", name="Details").click()
            item = form.locator(".dd-checks li", has_text="runs one process, but the job has 2")
            expect(item.get_by_role("link", name="What to do")).to_have_count(links)
            if links:
                with book.page.expect_popup() as opened:
                    item.get_by_role("link", name="What to do").click()
                expect(opened.value.locator("h3:target")).to_have_count(1)
                opened.value.close()
        server.shutdown()
    book.page.evaluate("delete globalThis[Symbol.for('distdl-jupyter.docs')]")
