"""A real Jupyter server in a thread of the test's own process, spoken to over HTTP."""

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from unittest import mock

import httpx
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

from tests.conftest import wait_for

TOKEN = "a-token-for-tests"
API = "/distdl/api"
#: Settings of a server that looks and says that it is alive often.
QUICK = {"keep_alive_seconds": 0.5, "list_seconds": 0.1, "clusters_seconds": 0.3}


@dataclass
class Running:
    """The server, its address, and a client that is logged in by token; paths count from ``distdl/api``."""

    app: ServerApp
    url: str
    client: httpx.Client

    @property
    def extension(self):
        return self.app.web_app.settings["distdl"]

    def ask(self, verb, path, **more):
        return self.client.request(verb, f"{API}{path}", **more)

    def get(self, path, status=200, **query):
        answer = self.ask("GET", path, params=query)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    def post(self, path, body=None, status=201, verb="POST"):
        answer = self.ask(verb, path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    def patch(self, path, body, status=200):
        return self.post(path, body, status, "PATCH")

    def delete(self, path, status=204):
        return self.post(path, None, status, "DELETE")

    def submit(self, code, **fields):
        return self.post("/jobs", {"code": code, **fields})["id"]

    def until(self, id_, *states, timeout=120.0):
        """Wait until the job is in one of the states and return its result."""

        def there():
            found = self.get(f"/jobs/{id_}/result")
            return found if found["state"] in states else None

        return wait_for(there, timeout, f"job {id_} in {states}")

    def until_ended(self, id_):
        return self.until(id_, "completed", "failed", "canceled", "lost")


@contextlib.contextmanager
def serve(root, base_url="/", traits=None, **settings):
    """Run a server with no other extension than ours; ``traits`` are those of the extension."""
    ready, found, problems = threading.Event(), {}, []

    def main():
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            found.update(loop=loop, app=loop.run_until_complete(start()))
        except BaseException as problem:  # noqa: BLE001 - the test raises it
            problems.append(problem)
            loop.close()
            return
        finally:
            ready.set()
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(stop(found["app"]))
            loop.close()

    @mock.patch("jupyter_core.paths.ENV_CONFIG_PATH", [])
    @mock.patch("jupyter_core.paths.SYSTEM_CONFIG_PATH", [])
    async def start():
        config = {"ServerApp": settings, "IdentityProvider": {"token": TOKEN}, "DistDLApp": traits or {}}
        app = ServerApp(
            root_dir=str(root), port=0, open_browser=False, allow_root=True, base_url=base_url, ip="127.0.0.1",
            jpserver_extensions={"distdl_jupyter": True},
        )  # fmt: skip
        app.init_signal = lambda: None
        app.update_config(Config(config))
        app.initialize(argv=[])
        app.start_app()
        await app.extension_manager.start_all_extensions()
        return app

    async def stop(app):
        await app._cleanup()
        app.http_server.stop()

    thread = threading.Thread(target=main, name="server")
    thread.start()
    assert ready.wait(60)
    if problems:
        raise problems[0]
    app = found["app"]
    port = next(iter(app.http_server._sockets.values())).getsockname()[1]
    url = f"http://127.0.0.1:{port}{base_url.rstrip('/')}"
    with httpx.Client(base_url=url, headers={"Authorization": f"token {TOKEN}"}, timeout=120) as client:
        try:
            yield Running(app, url, client)
        finally:
            found["loop"].call_soon_threadsafe(found["loop"].stop)
            thread.join(30)
            ServerApp.clear_instance()
    assert not thread.is_alive()
