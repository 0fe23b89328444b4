"""README and the tutorial, followed by a user who has nothing but a clone of the repository and the pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser import pages
from tests.browser.newcomer import FIRST_JOB, Newcomer
from tests.docs.blocks import DOCS, ROOT, blocks

pytestmark = [pytest.mark.full, pytest.mark.browser, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Newcomer]:
    """A user who has entered the commands of README, up to an open notebook."""
    newcomer = Newcomer(tmp_path_factory.mktemp("newcomer"), chromium)
    try:
        for line in next(block.text for block in blocks(ROOT / "README.md") if block.kind == "sh").splitlines():
            newcomer.enter(line)
        newcomer.open_notebook()
        yield newcomer
    finally:
        newcomer.close()


def test_the_tutorial_keeps_its_promises_to_a_new_user(newcomer: Newcomer) -> None:
    # A block more on the page needs its promise here.
    load, data, training, result, found, terminal, function, script, submitted, command, form = blocks(FIRST_JOB)
    for block in (load, data):
        newcomer.wait_until_run(newcomer.run_cell(block.text))

    # "The cell returns at once. Below the cell are its state, its progress, the curve ... and the log of both ranks."
    trained = newcomer.run_cell(training.text)
    newcomer.wait_until_run(trained)
    expect(trained.locator(".dd-pill").first).to_have_text(re.compile("Queued|Starting|Running"))
    expect(pages.curves(trained).first).to_be_attached()
    expect(trained.get_by_role("progressbar").first).to_be_attached()
    for rank in (0, 1):
        expect(pages.lines(trained).get_by_text(f"rank {rank} of 2 trains on 256 examples")).to_be_visible()
    pages.says(trained, "Completed")
    reported = newcomer.run_cell(result.text)
    newcomer.wait_until_run(reported)
    expect(reported.get_by_role("table")).to_contain_text("loss")

    # "Restart the kernel: its output stays live. Any Python process finds it again."
    newcomer.choose("Kernel", "Restart Kernel…")
    newcomer.page.get_by_role("dialog").get_by_text("Restart", exact=True).click()
    again = newcomer.run_cell(found.text)
    newcomer.wait_until_run(again)
    expect(again).to_contain_text("State.COMPLETED")
    expect(pages.curves(trained).first).to_be_attached()

    # "In a terminal of the same environment; without an id it is the newest job."
    newcomer.choose("File", "New", "Terminal")
    activate, listing, log = terminal.text.splitlines()
    newcomer.enter_in_lab(activate)
    assert re.search(r"(?m)^\d+-\d+-\w+\s.* first ", newcomer.enter_in_lab(listing))
    assert "rank 1 of 2 trains on 256 examples" in newcomer.enter_in_lab(log)
    newcomer.show_notebook()

    # "A function runs on every rank with its arguments. So does a script with its command line."
    ran = newcomer.run_cell(function.text)
    newcomer.wait_until_run(ran)
    expect(ran).to_contain_text("[0, 1]")
    newcomer.wait_until_run(newcomer.run_cell(script.text))
    ran = newcomer.run_cell(submitted.text)
    newcomer.wait_until_run(ran)
    pages.says(ran, "Completed")
    newcomer.show_terminal()
    assert "rank 1 of 2 received --epochs 3" in newcomer.enter_in_lab(command.text.strip())
    newcomer.show_notebook()

    # "Submit starts the job and shows it below."
    shown_form = newcomer.run_cell(form.text)
    pages.form(shown_form).get_by_role("button", name="Submit").click()
    pages.says(shown_form, "Completed")

    # The last page: "Try it on two emulated nodes."
    load, training = blocks(DOCS / "tutorial" / "cluster.md")[:2]
    newcomer.wait_until_run(newcomer.run_cell(load.text))
    nodes = newcomer.run_cell(training.text)
    pages.says(nodes, "Completed")
    expect(nodes).to_contain_text("2 × 1 = 2 processes")
