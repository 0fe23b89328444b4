"""A real JupyterHub behind configurable-http-proxy: each user has a home, settings and jobs of their own.

The hub starts each user's server as the user of the operating system who runs the tests. What it writes, and where all
of them listen, belongs to one test run.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

import psutil
from playwright.sync_api import Page

from tests.browser.conftest import TIMEOUT, Lab
from tests.conftest import wait_for
from tests.installation import ROOT, Installation
from tests.processes import free_port

_PROXY = ROOT / "labextension/node_modules/configurable-http-proxy/bin/configurable-http-proxy"
_PASSWORD = "a long story"
#: Of a service that may start and stop the servers of all users, as an administrator may.
_TOKEN = "0123456789abcdef0123456789abcdef"


class Hub:
    """A JupyterHub and its proxy: how they are started and ended, and the JupyterLab of each user."""

    base_url = "/jupyter/"

    def __init__(self, installed: Installation, folder: Path, users: tuple[str, ...]) -> None:
        self.installed = installed
        self.folder = folder
        self._ports = [free_port() for _ in range(3)]
        self.url = f"http://127.0.0.1:{self._ports[0]}{self.base_url}"
        self.labs = {name: HubLab(self, name) for name in users}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the hub, which starts the proxy; wait until both answer."""
        config = self.folder / "jupyterhub_config.py"
        config.write_text(self._config())
        command = [str(self.installed.python), "-m", "jupyterhub", f"--config={config}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=self.installed.environment(HOME=str(self.folder)), stdout=log, stderr=log, cwd=self.folder
            )
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(URLError, ConnectionError):
                self.request("GET", "")
                return
            time.sleep(0.05)
        raise RuntimeError(f"JupyterHub did not start:\n{self.log.read_text()[-3000:]}")

    def end(self) -> None:
        """Kill the hub, its proxy, the users' servers and their kernels, which would take seconds to end."""
        if self._process is None or self._process.poll() is not None:
            return
        started = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def request(self, method: str, path: str) -> Any:
        """Ask the hub's API something, as an administrator; return its answer."""
        headers = {"Authorization": f"token {_TOKEN}"}
        request = urllib.request.Request(f"{self.url}hub/api/{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return json.loads(answer.read() or "null")

    def log_in(self, page: Page, user: str) -> None:
        """Log in on the hub's page, which starts the user's server if it does not run, and wait for the server."""
        page.goto(f"{self.url}hub/login")
        page.get_by_label("Username").fill(user)
        page.get_by_label("Password").fill(_PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(re.compile(re.escape(self.labs[user].url)), wait_until="commit")

    @property
    def log(self) -> Path:
        """What the hub, the proxy and the users' servers printed."""
        return self.folder / "hub.log"

    def _config(self) -> str:
        node = shutil.which("node")
        if node is None or not _PROXY.exists():
            raise RuntimeError("Tests with JupyterHub need configurable-http-proxy: npm --prefix labextension ci")
        port, proxy_api, hub_port = self._ports
        values = {
            "JupyterHub.bind_url": f"http://127.0.0.1:{port}{self.base_url}",
            "JupyterHub.hub_bind_url": f"http://127.0.0.1:{hub_port}",
            "ConfigurableHTTPProxy.api_url": f"http://127.0.0.1:{proxy_api}",
            "ConfigurableHTTPProxy.command": [node, str(_PROXY)],
            "JupyterHub.authenticator_class": "shared-password",
            "SharedPasswordAuthenticator.user_password": _PASSWORD,
            "Authenticator.allowed_users": set(self.labs),
            "JupyterHub.spawner_class": "simple",
            "SimpleLocalProcessSpawner.home_dir_template": f"{self.folder}/{{username}}",
            "Spawner.notebook_dir": "~/notebooks",
            # Who may still look is asked again every so many seconds.
            "Spawner.args": [
                "--allow-root", "--LabApp.expose_app_in_browser=True", "--DistDLApp.keep_alive_seconds=1",
            ],
            "JupyterHub.services": [{"name": "tests", "api_token": _TOKEN}],
            "JupyterHub.load_roles": [
                {"name": "tests", "services": ["tests"], "scopes": ["servers", "read:users", "read:servers"]}
            ],
        }  # fmt: skip
        lines = [f"c.{name} = {value!r}" for name, value in values.items()]
        variables = {name: lab.variables for name, lab in self.labs.items()}
        lines += [
            f"variables = {variables!r}",
            "c.Spawner.pre_spawn_hook = lambda spawner: spawner.environment.update(variables[spawner.user.name])",
        ]
        return "\n".join(lines) + "\n"


class HubLab(Lab):
    """The JupyterLab of a user of the hub, which starts and stops it."""

    token = ""

    def __init__(self, hub: Hub, user: str) -> None:
        home = hub.folder / user
        home.mkdir()
        super().__init__(hub.installed, home)
        self.hub = hub
        self.user = user
        self.url = f"{hub.url}user/{user}/"

    def start(self) -> None:
        """Let the hub start the server."""
        self.hub.request("POST", f"users/{self.user}/server")
        wait_for(lambda: self._servers().get("", {}).get("ready"), TIMEOUT, "the user's server")

    def stop(self) -> None:
        """Let the hub stop the server, and its kernels with it; a job goes on."""
        self.hub.request("DELETE", f"users/{self.user}/server")
        wait_for(lambda: not self._servers(), TIMEOUT, "the end of the user's server")

    @property
    def log(self) -> Path:
        """What the server printed, and the hub with it."""
        return self.hub.log

    def _servers(self) -> dict[str, Any]:
        return dict(self.hub.request("GET", f"users/{self.user}")["servers"])
