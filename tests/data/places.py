"""What tests with several hosts share: Azurite at an address that hosts reach, and what their ranks do."""

import os
from pathlib import Path

import distdl_jupyter
from tests.azurite.proxy import Proxy
from tests.standin import certificate

#: Where hosts keep what is theirs: a disk of each host's own.
DISK = f"/opt/distdl-test-disk-{os.getpid()}"


def reachable(blob, gateway, folder, monkeypatch):
    """Let Blob be at the address of this machine that hosts reach; return the proxy that stands there."""
    (folder / "gateway").mkdir()
    pem, key = certificate.make(folder / "gateway", gateway)
    bundle = folder / "trusted.pem"
    bundle.write_text(Path(os.environ["REQUESTS_CA_BUNDLE"]).read_text() + pem.read_text())
    for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, str(bundle))
    proxy = Proxy(blob.azurite, pem, key, host=gateway)
    blob.blob_at(proxy.template)
    return proxy


def containing(blob):
    """Return a container with six blobs of 200 kB below cifar/."""
    container = blob.azurite.container()
    for number in range(6):
        container.put(f"cifar/part-{number}", bytes([number]) * 200_000)
    return container


def seen():
    """Run in a rank: where it runs, its data's folder, and the first byte of each file."""
    folder = distdl_jupyter.data_path("train")
    files = {path.name: path.read_bytes()[:1] for path in folder.iterdir()}
    return os.uname().nodename, str(folder), files


def no_signature_in(folder, *, but=""):
    """``but`` is how a file's name ends that may hold one for the moment, for its owner alone."""
    for path in Path(folder).rglob("*"):
        # The tests' own files are copied with a job and name what is searched for.
        if path.is_file() and not {"blobs", "code", "lib"} & {*path.parts}:
            if but and path.name.endswith(but):
                assert path.stat().st_mode & 0o777 == 0o600
            else:
                assert not {word for word in (b"sig=", b"skoid=") if word in path.read_bytes()}, path
