"""The way to the service: connections that were idle, proxies, the words of answers."""

import contextlib
import select
import socket
import socketserver
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from distdl_jupyter.data import stores
from distdl_jupyter.node.data_cache import StagingFailed, mask_secrets
from tests.data.stage import reading, source


class Tunnels(socketserver.ThreadingTCPServer):
    """A proxy that answers CONNECT; with ``instead`` all its tunnels lead to that port of this machine."""

    daemon_threads = True

    def __init__(self, instead=None):
        super().__init__(("127.0.0.1", 0), None)
        self.asked, self.instead, self.port = [], instead, self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def finish_request(self, client, _address):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        self.asked.append(head.decode())
        host, _, port = head.split()[1].decode().rpartition(":")
        address = ("127.0.0.1", self.instead) if self.instead else (host, int(port))
        with contextlib.suppress(OSError), socket.create_connection(address) as server:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            other = {client: server, server: client}
            while True:
                for side in select.select([client, server], [], [])[0]:
                    if not (piece := side.recv(2**16)):
                        return
                    other[side].sendall(piece)

    def close(self):
        self.shutdown()
        self.server_close()


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
    assert "from account.blob.core.windows.net is incomplete (its certificate is not trusted: NotValid" in last["text"]


def test_signatures_stand_in_no_text():
    text = mask_secrets("GET /c/x?sv=1&sig=abc%2Bd&se=2 and 'SIG=xyz'")
    assert text == "GET /c/x?sv=1&sig=***&se=2 and 'SIG=***'"
    assert "abc" not in str(StagingFailed("see sig=abc", "or sig=abc")) + StagingFailed("", "sig=abc").remedy


def test_many_workers_ask_for_one_signature():
    asked, used, barrier = [], [], threading.Barrier(8)

    def ask():
        asked.append("sv=1&sig=x")
        time.sleep(0.2)
        return asked[-1]

    def read(store):
        used.append(store)
        barrier.wait(20)
        if store is used[0]:
            raise ValueError("status code: 403")

    access = stores.Reader("train", "blob", "https://host/account/c", sign=ask)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(access.use, [read] * 8))
    assert len(asked) == 2  # one at first, and one for all who are refused with it
