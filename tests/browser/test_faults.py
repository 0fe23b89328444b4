"""Kernel, server and page are killed in the middle of a job: it goes on, and every view of it is whole again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import psutil
import pytest
from playwright.sync_api import Locator, expect

from distdl_jupyter.jobs import client
from distdl_jupyter.node import processes
from tests.browser import pages
from tests.browser.conftest import TIMEOUT, Book, Lab
from tests.conftest import until_gone, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

#: Two ranks that print and report a number each step, until a file is there.
TRAIN = """%%distributed -p 2 -b torch --name {name}
import os, time
from distdl_jupyter import log
rank, step = os.environ["RANK"], 0
while not os.path.exists({end!r}):
    print(f"step {{step}} of rank {{rank}}", flush=True)
    log(step=step, loss=1 / (step + 1))
    step += 1
    time.sleep(0.25)
print(f"end of rank {{rank}} after {{step}} steps", flush=True)
"""
PROMISE = "the job continues; log, cell, page and command line are complete again, without a missing line or point"


@pytest.fixture(autouse=True)
def nothing_left(lab: Lab) -> Iterator[None]:
    store = lab.store
    before = set(store.list_ids())
    yield
    lab.start_again()
    for job_id in set(store.list_ids()) - before:
        processes.kill_job(job_id)
        until_gone(job_id, 10.0)


class Story:
    """A job that trains until it is told to end, in an open notebook."""

    def __init__(self, desk: Callable[..., Book], lab: Lab, name: str, cell: str = TRAIN) -> None:
        self.lab = lab
        self.end = lab.root / f"{name}.end"
        self.book = desk(["%load_ext distdl_jupyter", cell.format(name=name, end=str(self.end))])
        self.book.run_all()
        self.says("Running")
        store = lab.store
        self.folder = wait_for(
            lambda: next((one for one in store.list_folders() if one.read_spec().name == name), None)
        )
        self.moves()
        self.book.save()

    @property
    def output(self) -> Locator:
        return self.book.output(1)

    @property
    def job(self) -> client.Job:
        return client.Job(self.folder)

    def says(self, state: str) -> None:
        pages.says(self.output, state)

    def moves(self) -> None:
        """Wait until the cell shows a line that is not yet printed now."""
        now = sum(1 for _ in self.job.logs(0))
        shown = pages.lines(self.output)
        wait_for(
            lambda: max(map(step_of, shown.all_inner_texts()), default=0) > now, TIMEOUT, "another line in the cell"
        )

    def kernels(self) -> list[psutil.Process]:
        """The living kernel processes of the server."""
        return [one for one in self.lab.process.children() if "ipykernel_launcher" in " ".join(words_of(one))]

    def finish(self) -> None:
        """End the job and look at everything that shows it."""
        self.end.touch()
        wait_for(lambda: self.job.state.ended, what="the end of the job")
        self.says("Completed")
        told = {rank: printed(self.job, rank) for rank in range(2)}
        for rank, texts in told.items():
            steps = int(re.fullmatch(rf"end of rank {rank} after (\d+) steps", texts[-1])[1])
            assert texts[:-1] == [f"step {step} of rank {rank}" for step in range(steps)], "the log"
            frame = self.job.metrics()
            assert list(frame[frame["rank"] == rank]["step"]) == list(range(steps)), "the metrics"
        whole = sorted(told[0] + told[1])
        assert all_lines(self.output) == whole, "the cell"
        assert points(self.output) == set(range(max(map(len, told.values())) - 1)), "the cell's curve"
        page = self.book.open_job(self.folder.id)
        assert all_lines(page) == whole, "the page"
        shown = self.lab.installed.run("distdl", "logs", self.folder.id, DISTDL_HOME=str(self.lab.home / "distdl"))
        assert sorted(re.findall(r"(?:step \d+|end) of rank \d(?: after \d+ steps)?", shown)) == whole, (
            "the command line"
        )
        # JupyterLab's own requests may fail unheard while its server is down.
        assert not [error for error in self.book.errors if "distdl" in error or "Failed to fetch" not in error]


def words_of(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # a zombie that its parent has not looked after yet
        return []


def printed(job: client.Job, rank: int) -> list[str]:
    return [line.text for line in job.logs(rank) if line.stream == "out"]


def step_of(text: str) -> int:
    found = re.match(r"step (\d+) of", text)
    return int(found[1]) if found else 0


def all_lines(where: Locator) -> list[str]:
    """Scroll through a log from its beginning and return what ranks have printed, sorted."""
    body = pages.log_body(where)
    pages.to_the_top(where)
    expect(pages.lines(where).filter(has_text="step 0 of rank").first).to_be_visible()
    found: dict[str, None] = {}
    at = -1
    while at != (now := body.evaluate("(body) => body.scrollTop")):
        at = now
        found.update(dict.fromkeys(pages.lines(where).all_inner_texts()))
        body.evaluate("(body) => { body.scrollTop += body.clientHeight / 2; }")
        where.page.wait_for_timeout(60)
    return sorted(text for text in found if " of rank " in text)


def points(where: Locator) -> set[int]:
    """The steps of the curve's mean."""
    return set(
        where.locator(".js-plotly-plot").first.evaluate(
            "(plot) => Array.from(plot.data.find((t) => t.name.startsWith('mean')).x)"
        )
    )


def reload(story: Story) -> None:
    story.book.page.reload()
    story.book.page.wait_for_selector(".jp-Notebook .jp-Cell")


def all_at_once(story: Story) -> None:
    kernels = story.kernels()
    story.lab.kill()
    for kernel in kernels:
        kernel.kill()
    story.book.page.goto("about:blank")
    story.lab.start()
    story.book.open_desk(story.book.name, reset=False)


@pytest.mark.full
@pytest.mark.fault("viewers", "the output is live again")
@pytest.mark.readme("kernel restart")
def test_after_a_kernel_restart_and_a_reload_the_output_is_live_again(desk: Callable[..., Book], lab: Lab) -> None:
    story = Story(desk, lab, "patient")
    story.book.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    story.book.kernel_idle()
    reload(story)
    story.says("Running")
    story.moves()
    story.finish()


@pytest.mark.full
@pytest.mark.fault("viewers", "a job that ended in the meantime is shown completely")
def test_a_job_that_ended_while_the_server_was_away_is_shown_whole(desk: Callable[..., Book], lab: Lab) -> None:
    story = Story(desk, lab, "alone")
    lab.stop()
    story.end.touch()
    wait_for(lambda: story.job.state.ended, what="the end of the job")
    lab.start()
    story.book.open_desk(story.book.name, reset=False)
    story.finish()
    bar = story.book.sidebar()
    expect(bar.job(re.compile("alone"))).to_contain_text(re.compile(r"\d\.\d+ *loss"))
    expect(bar.banner).to_be_hidden()


@pytest.mark.full
@pytest.mark.fault("viewers", PROMISE)
def test_what_happens_to_those_who_look_does_not_happen_to_the_job(desk: Callable[..., Book], lab: Lab) -> None:
    """First the server under the eyes of a page that stays, then kernel, server and page at once."""
    story = Story(desk, lab, "watched")
    story.lab.kill()
    story.lab.start()
    story.moves()
    all_at_once(story)
    story.moves()
    story.finish()


@pytest.mark.fault(
    "viewers", "a panel whose server is killed says that the connection is lost, and is live when it is back"
)
def test_a_panel_says_that_the_connection_to_the_server_is_lost_and_is_live_again(
    desk: Callable[..., Book], lab: Lab
) -> None:
    story = Story(desk, lab, "without-server")
    lost = story.output.locator(".dd-paused")
    expect(lost).to_be_hidden()
    lab.kill()
    expect(lost).to_have_text("Connection to the Jupyter server lost. Reconnecting…", timeout=5_000)
    expect(story.output.get_by_role("button", name="Cancel")).to_be_disabled()
    assert lost.evaluate("(line) => line.scrollWidth <= line.clientWidth"), "no word of it is cut off"
    lab.start()
    expect(lost).to_be_hidden(timeout=60_000)
    expect(story.output.get_by_role("button", name="Cancel")).to_be_enabled()
    story.moves()
    story.finish()
