"""TypeScript of the front end run by Node.js, without a browser."""

import json
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1] / "labextension"


def node_program():
    """Return the path of Node.js."""
    node = shutil.which("node")
    assert node, "These tests need Node.js, as the build of the front end does."
    return node


def bundle(source, target, *options):
    """Bundle a module, a path or a name below src, with what it imports, into one file; return the file."""
    entry = source if isinstance(source, Path) else ROOT / "src" / f"{source}.ts"
    command = [ROOT / "node_modules/.bin/esbuild", entry, "--bundle", "--format=esm", f"--outfile={target}", *options]
    subprocess.run(command, check=True, capture_output=True)
    return target


def evaluate(code):
    """Run a program; return what it prints as JSON."""
    done = subprocess.run([node_program(), "--input-type=module", "-e", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Program:
    """A Node.js program that answers each line of JSON on its input with one on its output."""

    def __init__(self, *command):
        # Node.js 20 has no WebSocket by itself.
        command = [node_program(), "--experimental-websocket", *command]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question):
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()
