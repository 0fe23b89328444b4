"""The page of all refusals finds the entry of each of its sentences, whatever a name or number in it is."""

import functools
import html
import re
import shutil
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser import pages
from tests.docs.blocks import DOCS

sys.path.insert(0, str(DOCS))
import reference

pytest_plugins = ("tests.browser.static_page",)
pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

#: Goes to each sentence of the page, `…` filled, and returns those whose own entry was not the one that is marked.
EACH = """async (filling) => {
  const headings = [...document.querySelectorAll('article h3')];
  const wrong = [];
  for (const heading of headings) {
    const text = heading.textContent.replace(/#$/, '');
    location.hash = '#says=' + encodeURIComponent(text.replaceAll('…', filling) + ' Do something.');
    await new Promise((done) => addEventListener('hashchange', () => setTimeout(done), { once: true }));
    const marked = document.querySelector('.distdl-said');
    if (marked?.querySelector('h3') !== heading) wrong.push([text, marked?.querySelector('h3')?.textContent ?? null]);
  }
  return [headings.length, wrong];
}"""


def marked(page):
    return page.locator(".distdl-said h3").inner_text()


@pytest.fixture(scope="module")
def troubleshooting(tmp_path_factory, chromium):
    """The page with the headings of the real one, as Sphinx nests them."""
    texts = re.findall(r"(?m)^### (.+)$", reference.troubleshooting())
    plain = [html.escape(html.unescape(re.sub(r"\\(.)", r"\1", text))) for text in texts]
    headings = [re.sub(r"`([^`]+)`", r"<code>\1</code>", text) for text in plain]
    entries = "".join(f'<section><h3>{one}<a class="headerlink" href="#">#</a></h3></section>' for one in headings)
    path = tmp_path_factory.mktemp("page") / "troubleshooting.html"
    script = (DOCS / "_static" / "says.js").read_text()
    path.write_text(
        f'<meta charset="utf-8"><article><h1>Troubleshooting</h1>{entries}</article><script>{script}</script>'
    )
    page = chromium.new_page()
    page.goto(path.as_uri())
    yield page
    page.close()


@pytest.mark.parametrize("filling", [pytest.param("x", marks=pytest.mark.full), "a name (of 2)"])
def test_each_sentence_finds_its_own_entry(troubleshooting, filling):
    count, wrong = troubleshooting.evaluate(EACH, filling)
    assert count > 450
    assert wrong == []


def test_a_sentence_is_found_in_a_failure_and_one_of_others_is_said_not_to_be(troubleshooting):
    page = troubleshooting
    page.evaluate("location.hash = '#says=Rank%203%20ended%20by%20SIGSEGV%3A%20Segmentation%20fault'")
    assert marked(page).startswith("Rank … ended by SIG…")
    page.evaluate("location.hash = '#says=' + encodeURIComponent('<b>Words</b> of % nobody')")
    page.locator(".distdl-unsaid", has_text="No entry was found for: <b>Words</b> of % nobody").wait_for()
    assert page.locator(".distdl-said").count() == 0
    page.evaluate("location.hash = '#says=100%'")
    page.locator(".distdl-unsaid", has_text="No entry was found for: 100%").wait_for()
    page.evaluate("location.hash = '#elsewhere'")
    page.wait_for_function("!document.querySelector('.distdl-unsaid')")


@pytest.mark.full
def test_a_refusal_in_the_form_leads_to_its_entry_and_none_does_without_the_setting(
    troubleshooting, static_page, monkeypatch, tmp_path
):
    folder = tmp_path / "site" / "reference"
    folder.mkdir(parents=True)
    shutil.copy(Path(unquote(urlsplit(troubleshooting.url).path)), folder)
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
            item = form.locator(".dd-checks li", has_text="runs one process, but 2 are asked for")
            expect(item.get_by_role("link", name="What to do")).to_have_count(links)
            if links:
                with book.page.expect_popup() as opened:
                    item.get_by_role("link", name="What to do").click()
                expect(opened.value.locator(".distdl-said h3")).to_contain_text("The backend … runs one process")
                opened.value.close()
        server.shutdown()
    book.page.evaluate("delete globalThis[Symbol.for('distdl-jupyter.docs')]")
