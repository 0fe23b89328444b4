"""A real HTTP endpoint that keeps what exporters send: Application Insights' ``/v2.1/track`` and OTLP's ``/v1/...``."""

import contextlib
import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Endpoint:
    """``posts`` holds (path, headers, body as sent, unpacked). It answers when ``answers`` is set."""

    def __init__(self, status=200, location=""):
        self.posts = []
        self.arrived = threading.Event()
        self.answers = threading.Event()
        self.answers.set()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                endpoint.posts.append((self.path, dict(self.headers), body))
                endpoint.arrived.set()
                endpoint.answers.wait(60)
                with contextlib.suppress(OSError):
                    self._answer(body)

            def _answer(self, body):
                told = b""
                if self.path.endswith("/track"):
                    count = len(json.loads(body))
                    told = json.dumps({"itemsReceived": count, "itemsAccepted": count, "errors": []}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def connection_string(self):
        return f"InstrumentationKey=00000000-aaaa-bbbb-cccc-000000000001;IngestionEndpoint={self.address}/"

    def items(self):
        """Return the telemetry items of Application Insights."""
        return [item for path, _, body in self.posts if path.endswith("/track") for item in json.loads(body)]

    def close(self):
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
