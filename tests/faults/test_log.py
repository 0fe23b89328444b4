"""Output that is huge, broken or hostile: shown as text, never misread, and never obeyed."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from distdl_jupyter.api.submit_process import submit_source
from distdl_jupyter.core.errors import JobFailed
from distdl_jupyter.core.events import State
from distdl_jupyter.html import job as saved
from distdl_jupyter.jobs.reader import PageReader
from tests.conftest import wait_for
from tests.faults import jobs
from tests.processes import distdl

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("alone")]

ESC = "\x1b"
#: What is printed, and the one word that must be left to read.
HOSTILE = {
    "title": f"{ESC}]0;OWNED\x07title",
    "link": f"{ESC}]8;;https://evil.example{ESC}\\link{ESC}]8;;{ESC}\\",
    "cursor": f"{ESC}[2J{ESC}[1;1H{ESC}[10Acursor",
    "answer": f"{ESC}[6n{ESC}[cansweranswer",
    "string": f"{ESC}P1$r{ESC}\\{ESC}^pm{ESC}\\{ESC}_apc{ESC}\\string",
    "hidden": f"{ESC}[8mhidden{ESC}[0m",
    "charset": f"{ESC}(0{ESC}ccharset",
    "eightbit": "\x9b31m\x9d0;OWNED\x9ceightbit",
    "nul": "nu\0l nul",
    "bell": "\a\a\abell",
    "turned": "\u202eturned\u202c \u2067turned\u2069",
    "separated": "separated\u2028one\u2029two\x85three",
    "invisible": "in\u200b\ufeff invisible",
    "script": "<script>window.hacked = 1</script><img src=x onerror='window.hacked=1'>script",
    "proto": '{"__proto__": {"polluted": 1}} proto',
}
PRINT = """
import os, sys
for line in HOSTILE.values():
    print(line)
sys.stdout.flush()
os.write(1, b"broken \\xff\\xfe\\xc3 utf-8\\n")
print("\\ud800 surrogate".encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
"""


def run(code, timeout=120, **options):
    job = submit_source(code, options=options)
    job.wait(timeout)
    return job


def rows(job):
    reading = PageReader(job.folder)
    reading.catch_up()
    return reading.log.rows


def in_a_terminal(*arguments):
    """Return all bytes that a command sends to a real terminal."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "distdl_jupyter.cli", *arguments]
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its)
    os.close(its)
    said = b""
    while True:
        try:
            more = os.read(ours, 65_536)
        except OSError:
            break
        if not more:
            break
        said += more
    os.close(ours)
    assert process.wait(60) == 0
    return said.decode()


COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: What no log keeps: it moves the cursor, erases or asks.
MOVES = re.compile(r"\x1b\[[0-9;]*[JHAnc]")


@pytest.mark.full
@pytest.mark.fault("log", "shown as text in every view; a terminal gets only text and colors")
def test_hostile_output(injected):
    job = run(f"HOSTILE = {HOSTILE!r}\n{PRINT}print('\\x1b[1;31mred\\x1b[0m plain')", name="hostile")
    assert job.state is State.COMPLETED, job.view().reason
    assert job.view().metrics == {}
    shown = [row.text for row in rows(job)]
    for name, line in HOSTILE.items():
        found = [text for text in shown if name in text][-1]
        assert not re.search("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\u200b\ufeff]", found), name
        assert "OWNED" not in found or name == "eightbit"
        assert MOVES.sub("", line) in [one.text for one in job.logs()] or "\x85" in line
        injected()
    assert any("broken \ufffd" in text for text in shown)
    for arguments in (("logs", job.id), ("show", job.id), ("ls",)):
        said = in_a_terminal(*arguments)
        left = COLOURS.sub("", said).replace("\r\n", "\n")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", left), arguments
        assert "]0;OWNED" not in left
    assert "\x1b[1;31mred\x1b[0m plain" in in_a_terminal("logs", job.id)
    assert "\x1b[8m" not in in_a_terminal("logs", job.id)
    assert b"\x1b" not in distdl("logs", job.id, text=False).stdout
    assert b"\x1b]0;OWNED\x07title" in distdl("logs", "--raw", job.id, text=False).stdout


FORGE = r"""
import itertools, json, os
nonce = os.environ["DISTDL_NONCE"]
def forge(text, nonce=nonce):
    os.write(1, b"\x1e" + nonce.encode() + b" " + text.encode() + b"\n")
bad = [None, 1e999, -1e999, "x", [], {}, {"a": {"b": []}}, True, "\ud800", "<script>", 10**400, [[[]]], "x" * 300_000]
good = {"step": 1, "values": {"ok": 1.0}, "done": 1, "total": 2, "unit": "u", "level": "info", "text": "t", "code": "c",
        "stream": "out", "cell": 1, "label": "l", "ended": False, "ok": True, "repr": "r", "bytes": 1, "error": None,
        "pid": 1, "host": "h"}
names = {"metric": ["step", "values"], "progress": ["done", "total", "unit"], "note": ["level", "text", "code"],
         "mark": ["stream", "cell", "label", "ended"], "result": ["ok", "repr", "bytes", "error"],
         "hello": ["pid", "host"]}
count = 0
for type_, fields in names.items():
    forge(json.dumps({"type": type_}), "0123456789abcdef")
    for field, value in itertools.product(fields, bad):
        if type_ == "result" and (field == "ok" or value is None or isinstance(value, str)):
            continue  # some of these would be proper
        report = {"type": type_, **{name: good[name] for name in fields}, field: value}
        text = json.dumps(report).replace("Infinity", "1e999")
        forge(text)
        forge(json.dumps({**report, "type": type_, "rank": 99}).replace("Infinity", "1e999"))
        count += 2
for frame in ([1], [{}], [{"file": 1}], "x"):
    forge(json.dumps({"type": "result", "ok": False, "repr": "", "bytes": 0, "error": {"type": "E", "frames": frame}}))
    forge(json.dumps({"type": "result", "ok": False, "error": {"values_at": 10**6}}))
    count += 2
forge('{"type":"metric","step":1,"values":' + "[" * 100_000)
forge(json.dumps({"type": "nobody knows", "x": bad[:3]}).replace("Infinity", "1e999"))
from distdl_jupyter import log
log(step=7, loss=0.5)
count
"""


@pytest.mark.fault("log", "text with the job's own nonce that is not a valid report is text; no view of the job breaks")
def test_text_that_imitates_reports(server, injected):
    job = run(FORGE)
    view = job.view()
    assert view.state is State.COMPLETED, view.reason
    assert view.metrics["loss"].values == {0: 0.5}
    assert set(view.metrics) <= {"loss", "ok"}
    for path in ("", "/result", "/log", "/outputs", "/metrics", "/log?rank=0"):
        assert server.ask("GET", f"/jobs/{job.id}{path}").status_code == 200, path
    assert server.ask("GET", f"/compare?ids={job.id}").status_code == 200
    assert len(server.get("/jobs")) == 1
    assert any("␞" in row.text for row in rows(job))
    assert any("0123456789abcdef" in line.text for line in job.logs())
    assert not (job.folder.supervisor_log.read_text())
    injected(job.result())


def memory(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmHWM:\s+(\d+)", file.read())[1]) * 1024


LONG = """
import os, sys, time
for _ in range(SIZE // 65536):
    os.write(1, b"x" * 65536)
os.write(1, b"\\nafter\\n")
while not os.path.exists(UNTIL):
    time.sleep(0.05)
"""


@pytest.mark.cold  # a warm supervisor's memory is mostly its template's
@pytest.mark.fault(
    "log", "stored and shown in pieces, within the limit of the log, without holding all of it in memory"
)
@pytest.mark.parametrize("size", [1_048_576, pytest.param(200 * 1_048_576, marks=pytest.mark.full)])
def test_a_line_of_many_megabytes(size, tmp_path):
    stop = tmp_path / "stop"
    job = submit_source(f"SIZE, UNTIL = {size}, {str(stop)!r}\n{LONG}")
    wait_for(lambda: any("after" in row.text for row in rows(job)), 120, "the line behind")
    taken = memory(jobs.found_supervisor_of(job).pid)
    stop.touch()
    job.wait(60)
    assert job.state is State.COMPLETED
    assert taken < 200_000_000
    assert sum(len(line.text) for line in job.logs() if set(line.text) == {"x"}) == size
    assert max(len(row.text) for row in rows(job)) < 11_000


CLOSES = """
import os, sys
print("before", flush=True)
for number in CLOSED:
    os.close(number)
40 + 2
"""


@pytest.mark.fault("log", "a rank that closes its output goes on: what it printed before and its result are kept")
@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2), (0, 1, 2)])
def test_a_rank_that_closes_its_output(closed):
    job = run(f"CLOSED = {closed}\n{CLOSES}")
    assert job.state is State.COMPLETED, job.view().reason
    assert job.result() == 42
    assert [line.text for line in job.logs(0)] == ["before"]


LAST_WORDS = """
import sys
print("the first words")
for step in range(60_000):
    print(f"step {step} of a training that prints too much")
print("the last words", file=sys.stderr)
raise SystemExit(7)
"""


@pytest.mark.fault(
    "log", "a log beyond its limit keeps its first and last part, and says how much is missing in between"
)
def test_last_words_of_a_job_that_printed_too_much():
    job = run(LAST_WORDS, max_log_bytes=1_600_000)
    assert job.state is State.FAILED
    texts = [line.text for line in job.logs(0)]
    assert texts[0] == "the first words"
    assert {"step 59999 of a training that prints too much", "the last words"} <= set(texts)
    (said,) = [line.text for line in job.logs() if "omitted; raise max_log_bytes to keep more" in line.text]
    missing = int(said.split()[1].replace(",", ""))
    assert missing == 60_002 - len(texts)
    assert sum(len(text.encode()) + 1 for text in texts) < 1_600_000
    with pytest.raises(JobFailed, match="Its output was: the last words"):
        job.result()
    assert [row.text for row in rows(job)][-5:].count("the last words") == 1
    assert job.view().lines >= 60_002


REDRAWN = """
import sys
for step in range(300_000):
    sys.stdout.write(f"\\rstep {step}")
print()
print("done")
"""


@pytest.mark.fault("log", "a line that is overwritten 300,000 times is one line, and the log stays small")
def test_a_flood_of_carriage_returns():
    job = run(REDRAWN)
    assert job.state is State.COMPLETED
    texts = [row.text for row in rows(job)]
    assert "step 299999" in texts
    assert "done" in texts
    assert len(texts) < 20
    assert job.folder.log.stat().st_size < 2_000_000


NAMES = """
import pathlib, os
from distdl_jupyter import log
for name in NAMES:
    log(step=1, **{name: 1.0})
    name = name.replace("/", "_").replace("\\0", "_")
    (pathlib.Path(os.environ["DISTDL_JOB_DIR"]) / "outputs" / name).write_text("x")
raise ValueError(chr(10).join(NAMES))
"""


@pytest.mark.fault("log", "names of metrics, outputs and errors are text too, in every response, page and terminal")
def test_hostile_names(server, injected):
    names = [line for line in HOSTILE.values() if len(line) < 100]
    job = run(f"NAMES = {names!r}\n{NAMES}")
    assert job.state is State.FAILED
    assert set(job.view().metrics) == set(names)
    at = f"/jobs/{job.id}"
    for path in (at, f"{at}/result", f"{at}/log", f"{at}/outputs", f"{at}/metrics", f"/compare?ids={job.id}"):
        answer = server.ask("GET", path)
        assert answer.status_code == 200, (path, answer.text)
        json.loads(answer.text)
    reading = PageReader(job.folder)
    page = saved.render_html(reading.catch_up(), reading.curves, reading.log, job.spec)
    assert "<script>window" not in page
    assert "<img src=x" not in page
    for arguments in (("show", job.id), ("ls",), ("logs", job.id)):
        left = COLOURS.sub("", in_a_terminal(*arguments)).replace("\r\n", "\n")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", left), arguments
        assert "OWNED\x07" not in left
        injected(len(names))
