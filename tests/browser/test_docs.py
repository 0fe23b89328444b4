"""The documentation as it is read: built as ``make docs`` builds it, opened as a file, without a server."""

import subprocess
import sys

import pytest

from tests.docs.blocks import DOCS, ROOT

pytestmark = [pytest.mark.full, pytest.mark.browser, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", DOCS, folder]
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_is_built_without_a_warning(site):
    assert "This page was run on" in (site / "notebooks" / "quickstart.html").read_text()
    files = [path for path in site.rglob("*") if path.suffix in {".html", ".js"}]
    named = [path.name for path in files if str(ROOT) in path.read_text(errors="ignore")]
    assert named == [], "nothing names a place of this machine"
    assert "### " not in (site / "reference" / "troubleshooting.html").read_text()


def test_a_job_in_a_page_works_without_a_server(site, chromium):
    """Curves of each rank, the log's tabs and its search, in a page that is opened as a file."""
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    asked, wrong = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((site / "notebooks" / "quickstart.html").as_uri())
    page.locator(".distdl-job").scroll_into_view_if_needed()
    job = page.locator(".distdl-kept")
    job.locator(".dd-pill", has_text="Completed").wait_for()
    job.locator(".js-plotly-plot .scatterlayer .trace").first.wait_for(state="attached")
    band = job.locator(".scatterlayer .trace").count()
    job.get_by_text("Each rank").click()
    page.wait_for_function(
        "many => document.querySelectorAll('.distdl-kept .scatterlayer .trace').length !== many", arg=band
    )
    job.get_by_role("tab", name="Rank 1").click()
    job.get_by_text("rank 1 of 2 trains on").wait_for()
    job.get_by_label("Search the log").fill("718 images")
    job.locator("mark").first.wait_for()
    assert job.get_by_role("button", name="Rerun").count() == 0
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert wrong == []
    page.close()


def test_a_launch_form_in_a_page_is_shown_and_nothing_in_it_can_be_pressed(site, chromium):
    page = chromium.new_page(viewport={"width": 1280, "height": 900}, color_scheme="dark")
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((site / "notebooks" / "quickstart.html").as_uri())
    page.locator(".distdl-form").scroll_into_view_if_needed()
    form = page.locator(".distdl-form .dd-form")
    form.get_by_text("2 processes", exact=True).first.wait_for()
    assert "resnet50" in form.locator("input").evaluate_all("inputs => inputs.map(input => input.value)")
    assert page.locator(".distdl-form .distdl-kept").evaluate("element => element.inert")
    assert wrong == []
    page.close()


@pytest.mark.parametrize(
    ("word", "page"),
    [("hang", "hangs"), ("deadlock", "hangs"), ("checkpoint", "checkpoints"), ("preemption", "slurm"), ("ssh", "ssh")],
)
def test_a_search_finds_the_page_on_the_subject_first(site, chromium, word, page):
    window = chromium.new_page()
    window.goto(f"{(site / 'search.html').as_uri()}?q={word}")
    first = window.locator("#search-results li a").first
    first.wait_for()
    assert f"howto/{page}.html" in first.get_attribute("href")
    window.close()


@pytest.mark.parametrize("page", ["tutorial/first-job", "howto/ssh", "notebooks/quickstart"])
def test_a_cell_with_a_magic_has_syntax_colors(site, chromium, page):
    window = chromium.new_page()
    window.goto((site / f"{page}.html").as_uri())
    cell = window.locator(".highlight pre", has_text="%%distributed").first
    assert cell.locator("span.kn", has_text="import").count() > 0
    window.close()
