"""Data from S3, from Google Cloud Storage and from web servers: jobs that read it, and what is said when they cannot.

S3 is moto's server. No server stands in for Google's: only what is said without credentials is looked at.
"""

import contextlib
import email.utils
import re
import subprocess
import sys
import urllib.request

import pytest

import distdl_jupyter
from distdl_jupyter.core.data import parse_source
from distdl_jupyter.core.errors import DataUnavailable, InvalidSpec
from distdl_jupyter.data import sources, stores
from tests.conftest import wait_for
from tests.data.stage import Stage
from tests.processes import free_port
from tests.standin.server import Answer

MB = 2**20
SECRET = "wJalr-not-a-real-secret-key"
CHANGED = email.utils.formatdate(1_700_000_000, usegmt=True)


@pytest.fixture(scope="module")
def moto():
    """The address of an S3 that takes any credentials."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"

    def answers():
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(address, timeout=5)

    wait_for(answers).close()
    yield address
    process.terminate()
    process.wait(10)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DISTDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DISTDL_CACHE", str(tmp_path / "cache"))
    for name in (*stores._AWS_VARIABLES, *stores._GOOGLE_VARIABLES, "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def bucket(moto, home, monkeypatch):
    """A new bucket; the environment has credentials for it."""
    import obstore
    from obstore.store import S3Store

    for name, value in (("AWS_ACCESS_KEY_ID", "AKIATEST"), ("AWS_SECRET_ACCESS_KEY", SECRET),
                        ("AWS_ENDPOINT_URL", moto), ("AWS_REGION", "us-east-1")):  # fmt: skip
        monkeypatch.setenv(name, value)
    name = f"test-{home.name.replace('_', '-').lower()}"[:60].rstrip("-")
    urllib.request.urlopen(urllib.request.Request(f"{moto}/{name}", method="PUT")).close()
    store = S3Store(name, endpoint=moto, client_options={"allow_http": True})

    class Bucket:
        def __init__(self):
            self.name = name

        def put(self, path, content):
            obstore.put(store, path, content)

    return Bucket()


class Web:
    """A web server's files by path, over TLS; ``ranges`` and ``etag`` say what it knows."""

    def __init__(self, server):
        self.place, self.seen, self.files = server.address, server.requests, {}
        self.ranges, self.etag, self.changed = True, '"one"', CHANGED
        for method in ("GET", "HEAD"):
            server.route(method, ".*", self.answer)

    def answer(self, request):
        content = self.files.get(request.path)
        if content is None:
            return Answer(status=403 if "private" in request.path else 404)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", "")) if self.ranges else None
        start, end = (int(asked[1]), int(asked[2]) + 1) if asked else (0, len(content))
        headers = {"ETag": self.etag, "Last-Modified": self.changed}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        return Answer(
            content[start:end], 206 if asked else 200, {name: value for name, value in headers.items() if value}
        )


@pytest.fixture
def web(home, azure_server):
    return Web(azure_server)


def sizes():
    folder = distdl_jupyter.data_path("train")
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def submit(**options):
    options = {"node_count": 1, "process_count_per_node": 1, "distributed_backend": "plain", **options}
    return distdl_jupyter.submit(sizes, **options).wait(120)


def listed(place):
    return sources.list_store(parse_source("train", place))


@pytest.mark.readme("S3")
def test_two_nodes_take_their_shards_of_s3_and_no_secret_is_kept(home, bucket):
    for number in range(4):
        bucket.put(f"set/{number} ü", b"x" * 1000)
    bucket.put("set10/no.bin", b"3")
    job = submit(data=f"train=s3://{bucket.name}/set?shard", node_count=2, distributed_backend="horovod-gloo")
    first, second = job.results()
    assert first.keys().isdisjoint(second)
    assert len(first | second) == 4
    for path in (home / "home").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), f"{path} holds the secret"


def test_an_object_of_s3_is_a_source_and_what_is_not_there_is_named(bucket):
    bucket.put("sets/train.csv", b"1,2")
    listing = listed(f"s3://{bucket.name}/sets/train.csv")
    assert ([(item.name, item.size) for item in listing.items], listing.is_single) == ([("sets/train.csv", 3)], True)
    for place in ("not-there/x", f"{bucket.name}/nothing"):
        with pytest.raises(DataUnavailable, match=r"contains no files|Cannot list"):
            listed(f"s3://{place}")


def test_public_s3_is_read_without_credentials(bucket, monkeypatch):
    bucket.put("x", b"1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert [item.name for item in listed(f"s3://{bucket.name}").items] == ["x"]


@pytest.mark.parametrize("keys", [False, True])
def test_s3_that_refuses_is_said_with_the_remedy(home, azure_server, monkeypatch, keys):
    azure_server.route("GET", ".*", lambda _: Answer(b"<Error><Code>AccessDenied</Code></Error>", 403))
    monkeypatch.setenv("AWS_ENDPOINT_URL", azure_server.address)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")  # where a role would be
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if keys else ():
        monkeypatch.setenv(name, SECRET)
    text = r"^No permission to read s3://private \(403 AccessDenied\)\. .* AWS_ACCESS_KEY_ID and .*, a profile in"
    with pytest.raises(DataUnavailable, match=text):
        listed("s3://private/x")


def test_a_node_without_obstore_says_how_to_install_it(home, certificates):
    (home / "hidden" / "obstore").mkdir(parents=True)
    (home / "hidden" / "obstore" / "__init__.py").write_text("raise ImportError('not here')")
    told = {"name": "train", "variable": "X", "kind": "s3", "address": "s3://bucket", "prefix": "", "settings": {},
            "items": [["x", 1, "1", ""]]}  # fmt: skip
    run = Stage(home / "base", certificates[0]).run(told, environment={"PYTHONPATH": str(home / "hidden")})
    last = run.failed()
    assert last["text"] == "obstore is not installed in the Python that runs the ranks."
    assert last["remedy"] == "Install it on the node: python -m pip install obstore"


def test_the_keys_of_a_profile_are_taken(home, monkeypatch):
    (home / ".aws").mkdir()
    (home / ".aws" / "credentials").write_text("[default]\naws_access_key_id = a\n[lab]\naws_access_key_id = b\n"
                                               "aws_secret_access_key = 5%c\n")  # fmt: skip
    assert stores._read_aws_profile() == {}
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert stores._read_aws_profile() == {"access_key_id": "b", "secret_access_key": "5%c"}


@pytest.mark.parametrize("etag", ['"one"', 'W/"weak"', ""])
@pytest.mark.readme("https")
def test_a_job_reads_a_file_of_a_web_server(web, etag):
    web.etag = etag
    web.files = {"/sets/a b.npz": b"7" * (9 * MB)}
    job = submit(data={"train": f"{web.place}/sets/a%20b.npz"})
    assert job.results() == [{"a b.npz": 9 * MB}], job.view().reason


def test_a_web_server_without_ranges_gives_its_files(web):
    web.ranges = False
    web.files = {"/large": b"2" * (20 * MB)}
    assert submit(data={"train": f"{web.place}/large"}).results() == [{"large": 20 * MB}]


def test_a_file_that_was_changed_since_it_was_listed_is_refused(web, tmp_path, certificates):
    web.files = {"/x": b"1" * 1000}
    [item] = listed(f"{web.place}/x").items
    assert item.version == "one"
    web.etag = '"two"'
    told = {"name": "train", "variable": "X", "kind": "https", "address": web.place, "prefix": "", "items": [item]}
    last = Stage(tmp_path / "base", certificates[0]).run(told).failed()
    assert last["text"] == "'x' of train changed or was deleted during the download (412)."


@pytest.mark.parametrize(
    ("path", "says"),
    [("nothing", "contains no files"), ("private", r"No permission to read .* \(403\)\. Use a public file")],
)
def test_what_a_web_server_does_not_give_is_said(web, path, says):
    with pytest.raises(DataUnavailable, match=says):
        listed(f"{web.place}/{path}")


def test_a_file_without_a_version_is_refused(web):
    web.files, web.etag, web.changed = {"/x": b"1"}, "", ""
    with pytest.raises(DataUnavailable, match="sends neither an ETag nor a modification time"):
        listed(f"{web.place}/x")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("https://host/folder/", "does not name a file, and web servers do not list files."),
        ("https://host", "does not name a file, and web servers do not list files."),
        ("https://user:word@host/x", ":// address must not contain a user or a password, because"),
        ("https://host/x?X-Amz-Signature=abc", "must not contain a shared access signature"),
        ("https://account.blob.core.windows.net/c/x", "blob://account/c/x"),
        ("s3://Bucket/x", "is not a valid bucket name"),
        ("gs:///x", "is not a valid bucket name"),
        ("http://host/x", "is not a valid data address."),
    ],
)
def test_places_that_cannot_be_are_refused_by_their_words(place, says):
    with pytest.raises(InvalidSpec, match=re.escape(says)) as refused:
        parse_source("train", place)
    assert "word" not in str(refused.value).replace("password", "")


@pytest.mark.parametrize(
    "place", ["s3://bucket/a/b", "gs://my_bucket", "https://host:8443/a b/c.csv", "s3://bucket/set?shard"]
)
def test_a_place_reads_back_as_it_was_written(place):
    assert parse_source("train", place).url == place
