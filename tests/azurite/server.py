"""One Azurite process with blobs in memory, and its containers."""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import itertools
import json
import ssl
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.azurite import install
from tests.processes import free_port

ACCOUNT = "devstoreaccount1"
#: The emulator's well-known key, https://learn.microsoft.com/azure/storage/common/storage-connect-azurite
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
TENANT = "11111111-1111-1111-1111-111111111111"


def token(audience: str = "https://storage.azure.com", *, seconds: float = 3600, **claims: Any) -> str:
    """Return a token as Entra ID writes them, without its signature, which Azurite does not check."""
    now = int(time.time())
    told = {"aud": audience, "iss": f"https://sts.windows.net/{TENANT}/", "iat": now - 60, "nbf": now - 60,
            "exp": int(now + seconds), "oid": "22222222-2222-2222-2222-222222222222", "tid": TENANT,
            "upn": "ann@example.org", **claims}  # fmt: skip
    parts = ({"alg": "RS256", "typ": "JWT"}, told)
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*coded, "unsigned"])


class Bearer:
    """A credential that gives such tokens; it counts how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get_token(self, *scopes: str, **_: Any) -> Any:
        from azure.core.credentials import AccessToken

        self.asked += scopes
        return AccessToken(token(scopes[0].removesuffix("/.default")), int(time.time()) + 3600)

    def close(self) -> None:
        return


class Azurite:
    """Azurite at ``https://127.0.0.1:<port>``; more addresses than that with ``host="0.0.0.0"``."""

    account = ACCOUNT
    key = KEY

    def __init__(self, certificate: Path, key: Path, host: str = "127.0.0.1") -> None:
        self.ca = str(certificate)
        self.host = host
        self.port = free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._counter = itertools.count(1)
        self._process = subprocess.Popen(
            ["node", str(install.program()), "--blobHost", host, "--blobPort", str(self.port),
             "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent", "--oauth", "basic",
             "--cert", self.ca, "--key", str(key)],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._service: Any = None
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def template(self) -> str:
        """What stands for ``blob`` in the description of a cloud."""
        return f"{self.address}/{{account}}"

    @property
    def endpoint(self) -> str:
        return f"{self.address}/{ACCOUNT}"

    @property
    def service(self) -> Any:
        """The SDK's client with the account's key, for what a test prepares."""
        if self._service is None:
            self._service = self.client(KEY)
        return self._service

    def client(self, credential: Any, endpoint: str = "") -> Any:
        from azure.storage.blob import BlobServiceClient

        # A test may change the environment in another thread while this reads it for a proxy.
        return BlobServiceClient(endpoint or self.endpoint, credential=credential, connection_verify=self.ca,
                                 use_env_settings=False)  # fmt: skip

    def container(self, name: str = "") -> Container:
        """Return a new container; it is not removed, as everything is in memory."""
        name = name or f"test-{next(self._counter)}"
        self.service.create_container(name)
        return Container(self, name)

    def close(self) -> None:
        if self._service is not None:
            self._service.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _wait(self) -> None:
        until = time.monotonic() + 180
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                self._log.seek(0)
                raise AssertionError(f"Azurite does not answer: {self._log.read()[-2000:]!r}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        trust = ssl.create_default_context(cafile=self.ca)
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=trust)
        try:
            connection.request("GET", f"/{ACCOUNT}?comp=list")
            return connection.getresponse().status < 500
        except OSError:
            return False
        finally:
            connection.close()


class Container:
    """A container; ``put`` writes a blob, ``sas`` lets others read."""

    def __init__(self, azurite: Azurite, name: str) -> None:
        self.azurite = azurite
        self.name = name
        self.client = azurite.service.get_container_client(name)

    @property
    def address(self) -> str:
        return f"{self.azurite.endpoint}/{self.name}"

    def place(self, prefix: str = "") -> str:
        """Return the words that name a prefix here: ``blob://account/container/prefix``."""
        return f"blob://{ACCOUNT}/{self.name}" + (f"/{prefix}" if prefix else "")

    def put(self, name: str, data: bytes = b"", **more: Any) -> str:
        """Write a blob (``md5=False``: without the sum of its content) and return its ETag."""
        blob = self.client.get_blob_client(name)
        if not more.pop("md5", True):
            from azure.storage.blob import BlobBlock

            blocks = [
                (BlobBlock(f"{at:04}"), data[at * 2**22 : (at + 1) * 2**22]) for at in range(-(-len(data) // 2**22))
            ]
            for block, content in blocks:
                blob.stage_block(block.id, content)
            return str(blob.commit_block_list([block for block, _ in blocks], **more)["etag"]).strip('"')
        return str(blob.upload_blob(data, overwrite=True, **more)["etag"]).strip('"')

    def read(self, name: str) -> bytes:
        return bytes(self.client.download_blob(name).readall())

    def names(self, prefix: str = "") -> list[str]:
        return sorted(blob.name for blob in self.client.list_blobs(name_starts_with=prefix))

    def items(self, prefix: str = "") -> list[list[Any]]:
        """Return what is below a prefix, as the stager is told: name, size, ETag, MD5 in base64."""
        return [
            [blob.name, blob.size, blob.etag, base64.b64encode(blob.content_settings.content_md5 or b"").decode()]
            for blob in self.client.list_blobs(name_starts_with=prefix)
        ]

    def sas(self, permission: str = "rl", *, seconds: float = 3600, begin: float = -900) -> str:
        """Return a user-delegation SAS of this container that is good from ``begin`` to ``seconds`` from now."""
        from azure.storage.blob import generate_container_sas

        now = dt.datetime.now(dt.UTC)
        start, end = (now + dt.timedelta(seconds=one) for one in (begin, seconds))
        with self.azurite.client(Bearer()) as service:
            key = service.get_user_delegation_key(start, max(end, now + dt.timedelta(minutes=5)))
        return str(generate_container_sas(ACCOUNT, self.name, user_delegation_key=key, permission=permission,
                                          start=start, expiry=end, protocol="https"))  # fmt: skip
