"""A new user: a terminal, a browser, and the tutorial, whose blocks are entered as they stand.

The home holds a clone of the repository and nothing else; the page's own commands make the environment. What is done
beside entering blocks (a card, a menu entry, a button) is what the pages say between them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from playwright.sync_api import Browser, Locator, expect

from distdl_jupyter.core.store import JobStore
from distdl_jupyter.node import processes
from tests.conftest import wait_for
from tests.docs.blocks import DOCS, ROOT, blocks
from tests.installation import front_end, plain_environment, programs

INSTALL = DOCS / "tutorial" / "install.md"
FIRST_JOB = DOCS / "tutorial" / "first-job.md"
#: pip may have to fetch torch.
_PIP_SECONDS = 600.0
_URL = re.compile(r"http://\S+/lab\?token=\w+")


class Newcomer:
    """A user who follows the tutorial; ``folder`` gets the home, and beside it what makes the machine.

    The clone is as git makes one, so pip builds the front end with Node.js. With ``built`` it comes with the front end,
    and no Node.js is found.
    """

    def __init__(self, folder: Path, chromium: Browser, *, built: bool = False) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        _clone(self.home / "distdl_jupyter", built=built)
        self.printed = folder / "terminal.txt"
        self.page = chromium.new_page(viewport={"width": 1440, "height": 1400})
        self.page.set_default_timeout(90_000)
        self.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        with self.printed.open("wb") as out:
            self._shell = subprocess.Popen(
                ["bash", "--noprofile", "--norc"], stdin=subprocess.PIPE, stdout=out, stderr=out, cwd=self.home,
                env=self._environment(built=built), start_new_session=True,
            )  # fmt: skip

    def _environment(self, *, built: bool) -> dict[str, str]:
        """Return what a login gives; pip gets torch of the release that the tests have."""
        constraint = self.folder / "constraint.txt"
        constraint.write_text(f"torch=={version('torch').partition('+')[0]}\n")
        python = Path(getattr(sys, "_base_executable", sys.executable)).parent
        given = plain_environment()
        given.pop("VIRTUAL_ENV", None)
        queue = self.folder / "queue" / f"distdl-queue-{os.getuid()}"
        queue.mkdir(mode=0o755, parents=True)
        given.pop("HATCH_JUPYTER_BUILDER_SKIP_NPM", None)
        caches = Path(given.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        on_path = programs(self.folder / "programs", node=not built)
        config = self.home / ".jupyter"
        terminal = config / "lab" / "user-settings" / "@jupyterlab" / "terminal-extension"
        terminal.mkdir(parents=True)
        # Its text can be read.
        (terminal / "plugin.jupyterlab-settings").write_text('{"screenReaderMode": true}')
        if os.getuid() == 0:  # JupyterLab refuses to start for root, and says what to do.
            (config / "jupyter_server_config.json").write_text('{"ServerApp": {"allow_root": true}}')
        return {
            "PIP_CACHE_DIR": str(caches / "pip"),
            "NPM_CONFIG_CACHE": str(Path.home() / ".npm"),
            **given,
            "HOME": str(self.home),
            "PATH": f"{python}{os.pathsep}{on_path}",
            "PIP_CONSTRAINT": str(constraint),
            "DISTDL_QUEUE": str(queue.parent),
            "BROWSER": "true",
        }

    # ---- the terminal that the first page begins in ----

    def enter(self, line: str) -> None:
        """Enter a command and wait for its end; ``jupyter lab`` only until it says where it listens."""
        before = len(self._text())
        self._write(f"{line}\n")
        if line == "jupyter lab":
            wait_for(lambda: _URL.search(self._text()), what="JupyterLab's address", timeout=120)
            return
        self._write('echo "exit code $?"\n')
        code = wait_for(
            lambda: re.search(r"(?m)^exit code (\d+)$", self._text()[before:]), what=line, timeout=_PIP_SECONDS
        )[1]
        assert code == "0", f"{line}: {self._text()[before:][-3000:]}"

    def install(self) -> list[str]:
        """Return the commands of the first page, to be entered one by one."""
        first = next(block for block in blocks(INSTALL) if block.kind == "sh")
        return [line.partition("  #")[0].rstrip() for line in first.text.splitlines()]

    def open_notebook(self) -> None:
        """Open JupyterLab at the printed address, and a notebook from its launcher."""
        self.page.goto(_URL.findall(self._text())[-1])
        self.page.locator('.jp-LauncherCard[data-category="Notebook"]', has_text="Python 3").click()
        expect(self.page.locator(".jp-Notebook .jp-Cell")).to_have_count(1)
        expect(self.page.locator("#jp-main-statusbar")).to_contain_text("Idle")

    def _write(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text.encode())
        self._shell.stdin.flush()

    def _text(self) -> str:
        return self.printed.read_text(errors="replace")

    # ---- JupyterLab ----

    def run_cell(self, text: str) -> Locator:
        """Put a block into the last cell and run it; return its output."""
        cells = self.page.locator(".jp-Notebook .jp-Cell")
        number = cells.count() - 1
        cells.nth(number).locator(".cm-content").click()
        self._paste(text)
        self.page.keyboard.press("Shift+Enter")
        expect(cells).to_have_count(number + 2)
        return cells.nth(number)

    def wait_until_run(self, cell: Locator) -> None:
        """Wait until the kernel has run a cell, which has a number then."""
        expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"^\[\d+\]:$"))
        assert cell.locator('[data-mime-type="application/vnd.jupyter.stderr"]').all_inner_texts() == []

    def choose(self, *entries: str) -> None:
        """Choose from the menu bar: ``File``, ``New``, ``Terminal``."""
        self.page.get_by_role("menubar").get_by_role("menuitem", name=entries[0], exact=True).click()
        for entry in entries[1:]:
            self.page.locator(".lm-Menu-itemLabel").get_by_text(entry, exact=True).click()

    def show_notebook(self) -> None:
        """Go back to the notebook's tab."""
        self.page.get_by_role("tab", name="Untitled.ipynb").click()

    def show_terminal(self) -> None:
        """Go back to the terminal's tab."""
        self.page.get_by_role("tab", name="Terminal 1").click()

    def enter_in_lab(self, line: str) -> str:
        """Enter a command in JupyterLab's terminal; return its lines when the prompt is back."""
        rows = self.page.locator(".jp-Terminal .xterm-accessibility-tree > div")
        before = self._prompt(rows)
        self.page.locator(".jp-Terminal").click()
        self.page.keyboard.type(f"{line}\n")
        wait_for(lambda: self._prompt(rows) > before, what=line)
        return "\n".join(rows.all_inner_texts()[before + 1 : self._prompt(rows)])

    def _prompt(self, rows: Locator) -> int:
        """Return the number of the row with the prompt that waits."""

        def found() -> int:
            texts = [text.replace("\xa0", " ").rstrip() for text in rows.all_inner_texts()]
            last = max((number for number, text in enumerate(texts) if text), default=-1)
            return last if last >= 0 and texts[last][-1] in "#$" else -1

        return wait_for(lambda: found() + 1, what="the prompt") - 1

    def _paste(self, text: str) -> None:
        self.page.evaluate("(text) => navigator.clipboard.writeText(text)", text.rstrip("\n"))
        self.page.keyboard.press("Control+V")

    def close(self) -> None:
        """End all that was started."""
        self.page.close()
        for folder in JobStore(self.home / ".local/share/jupyter/distdl").list_folders():
            processes.kill_job(folder.id)
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()
        shutil.rmtree(self.home / "learn", ignore_errors=True)


def _clone(target: Path, *, built: bool) -> None:
    """Copy the files that git knows, as they are now; with ``built`` the front end as well."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    names = listed.stdout.decode().splitlines()
    for name in [*names, *(front_end() if built else ())]:
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
