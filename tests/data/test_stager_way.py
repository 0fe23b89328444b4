"""The way to the service: connections that were idle, proxies, the words of answers."""

import contextlib
import select
import socket
import threading
import time

import pytest

from distdl_jupyter.data import stores
from distdl_jupyter.node.data_cache import Failure, masked
from tests.conftest import wait_for
from tests.data.stage import reading, source


class Tunnels:
    """A proxy as companies have it: CONNECT, with a password; with ``instead`` it leads to that port here."""

    def __init__(self, instead=None):
        self.asked = []
        self._instead = instead
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        self.asked.append(head.decode())
        host, _, port = head.split()[1].decode().rpartition(":")
        aim = ("127.0.0.1", self._instead) if self._instead else (host, int(port))
        with contextlib.suppress(OSError), client, socket.create_connection(aim) as server:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            other = {client: server, server: client}
            while True:
                for one in select.select([client, server], [], [])[0]:
                    piece = one.recv(2**16)
                    if not piece:
                        return
                    other[one].sendall(piece)

    def close(self):
        self._listener.close()


def test_the_machines_proxy_is_used_and_sees_no_signature(stage, container):
    container.put("x", b"1")
    tunnels = Tunnels()
    address = f"http://ann:s%20p@127.0.0.1:{tunnels.port}"
    last = stage.run(source(container), sas=reading(container), environment={"HTTPS_PROXY": address}).staged()
    tunnels.close()
    assert stage.files(last["paths"]["DISTDL_DATA_TRAIN"]) == {"x": b"1"}
    [asked] = tunnels.asked
    assert asked.startswith(f"CONNECT 127.0.0.1:{container.azurite.port} HTTP/1")
    assert "proxy-authorization: Basic YW5uOnMgcA==" in asked
    assert "sig" not in asked


def test_hosts_that_need_no_proxy_get_none(stage, container):
    container.put("x", b"1")
    unused = {"HTTPS_PROXY": "http://127.0.0.1:1", "NO_PROXY": "127.0.0.1"}
    stage.run(source(container), sas=reading(container), environment=unused).staged()


def test_a_host_that_is_not_who_it_says_hears_no_signature(stage, container):
    container.put("x", b"1")
    tunnels = Tunnels(instead=container.azurite.port)
    told = {**source(container), "address": "https://account.blob.core.windows.net/c"}
    last = stage.run(
        told, sas=reading(container), environment={"HTTPS_PROXY": f"http://127.0.0.1:{tunnels.port}"}
    ).failed()
    tunnels.close()
    said = "The certificate of account.blob.core.windows.net is not trusted (NotValidForName"
    assert last["text"].startswith(said)


def test_signatures_stand_in_no_text():
    text = masked("GET /c/x?sv=1&sig=abc%2Bd&se=2 and 'SIG=xyz'")
    assert text == "GET /c/x?sv=1&sig=***&se=2 and 'SIG=***'"
    assert "abc" not in str(Failure("see sig=abc", "or sig=abc")) + Failure("", "sig=abc").remedy


@pytest.mark.parametrize("given", ["", "sv=1&sig=a b", "sv=1\r\nHost: evil", "sv=1#x", "é"])
def test_what_would_change_the_request_is_no_signature(given):
    access = stores.access("train", "blob", "https://host/account/c", ask=lambda timeout: {"sas": given})
    with pytest.raises(Failure, match="The shared access signature is not valid"):
        access.use(lambda store: store)


def test_many_workers_ask_for_one_signature():
    asked = []

    def ask(timeout):
        asked.append(timeout)
        time.sleep(0.2)
        return {"sas": "sv=1&sig=x"}

    access = stores.access("train", "blob", "https://host/account/c", ask=ask)
    threads = [threading.Thread(target=access.use, args=(lambda store: store,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_for(lambda: not any(thread.is_alive() for thread in threads))
    assert len(asked) == 1
    # of those who were refused with the same one, only the first has another one made
    for _ in range(8):
        access.replace(1, stores.StoreError(403, "AuthenticationFailed"))
    assert (len(asked), access.number) == (2, 2)


def test_certificates_have_to_be_some():
    with pytest.raises(Failure, match="Cannot read the certificates of the staging order"):
        stores.client("no certificate")
