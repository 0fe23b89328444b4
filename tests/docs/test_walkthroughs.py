"""The walk-throughs of SSH and Slurm, followed on real hosts: every command, cell and file is the page's own text."""

import os
import re
import shutil
import subprocess

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.blocks import ROOT, blocks
from tests.hosts import needs_hosts
from tests.processes import executable
from tests.slurm import needs_slurm, slurm_of  # noqa: F401 - a fixture

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

#: The hosts of the tests already have a key, and no password to copy it with.
SKIPPED_COMMANDS = ("ssh-keygen", "ssh-copy-id")
MARKS = "✓✗·!"


class Reader:
    """A user with a terminal and a notebook, who follows a page section by section."""

    def __init__(self, page, folder, environment):
        self._page = page
        self._folder = folder
        self._environment = environment

    def follow(self, last, before=None):
        """Run all blocks down to the section ``last``; ``before`` maps a section to what happens before it."""
        notebook = nbformat.v4.new_notebook()
        client = NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True)
        every = blocks(ROOT / self._page)
        section = ""
        with client.setup_kernel(cwd=str(self._folder), env=self._environment):
            for number, block in enumerate(every):
                if block.heading != section:
                    if section == last:
                        break
                    section = block.heading
                    (before or {}).get(section, lambda: None)()
                following = every[number + 1] if number + 1 < len(every) else None
                expected = following.text if following and following.kind == "text" else ""
                if block.kind == "sh":
                    output = self._run_commands(block.text, fails="✗" in expected)
                elif block.kind == "python":
                    output = self._run_cell(client, block.text, fails="fail" in section)
                else:
                    continue
                if expected and output is not None and following.heading == section:
                    check_output(expected, output, f"{self._page}:{following.line}")

    def _run_commands(self, text, fails):
        lines = [line for line in text.splitlines() if not line.startswith(SKIPPED_COMMANDS)]
        if not lines:
            return None
        done = subprocess.run(["bash", "-c", "\n".join(lines)], cwd=self._folder, env=self._environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)  # fmt: skip
        assert (done.returncode != 0) == fails, f"{lines}: {done.stdout}"
        return self._translate(done.stdout)

    def _run_cell(self, client, text, fails):
        cell = nbformat.v4.new_code_cell(text)
        client.nb.cells.append(cell)
        client.execute_cell(cell, len(client.nb.cells) - 1)
        parts = []
        for output in cell.outputs:
            if output.output_type == "error":
                parts.append(f"{output.ename}: {output.evalue}")
                assert fails, f"{text}: {parts[-1]}"
            else:
                parts.append(output.get("text") or output.data.get("text/plain", ""))
        return self._translate("\n".join(parts))

    def _translate(self, text):
        return text.replace("node-a", "gpu1").replace("node-b", "gpu2")


def check_output(expected, actual, where):
    """Compare loosely: the same checks with the same marks, and most words; numbers differ by machine."""
    lines = actual.splitlines()
    for line in expected.splitlines():
        if line and line[0] in MARKS:
            title = re.split(r"\s{2,}", line)[1]
            assert any(other.startswith(line[0]) and title in other for other in lines), f"{where}: {line}\n{actual}"
    words = set(re.findall(r"[^\W\d_]{3,}", expected))
    missing = {word for word in words if word not in actual}
    assert len(missing) <= 0.3 * len(words), f"{where}: {sorted(missing)} not in\n{actual}"


@pytest.fixture
def environment(tmp_path, distdl_home):
    """A user of this machine with settings of their own."""
    programs = tmp_path / "programs"
    programs.mkdir()
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(programs), str(ROOT / ".venv" / "bin"), os.environ["PATH"]]),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "configuration"),
    }


@needs_hosts
def test_a_reader_gets_from_a_login_to_a_job_on_ssh_hosts(hosts_of, tmp_path, environment):
    hosts = hosts_of(2)
    reader = Reader("docs/howto/ssh.md", tmp_path, environment)

    def log_in():
        config = next(block.text for block in blocks(ROOT / "docs/howto/ssh.md") if block.kind == "text")
        for page, here in (("10.0.0.11", hosts.address("node-a")), ("10.0.0.12", hosts.address("node-b")),
                           ("ann", "root"), ("~/.ssh/id_ed25519", str(hosts.folder / "id"))):  # fmt: skip
            assert page in config
            config = config.replace(page, here)
        file = tmp_path / "ssh_config"
        file.write_text(f"{config}    UserKnownHostsFile {hosts.known_hosts}\n")
        # ssh finds ~ by the user's entry, not by $HOME
        executable(tmp_path / "programs" / "ssh", f'exec {shutil.which("ssh")} -F {file} "$@"')

    last = "If a host fails the check"
    reader.follow(last, {"1. Set up the login": log_in, last: lambda: hosts.forget_host_key("node-b")})
    assert not [name for name in hosts.names if hosts.running(name, "distdl_jupyter")]


@needs_slurm
def test_a_reader_gets_from_sinfo_to_a_job_on_slurm(slurm_of, tmp_path, environment):  # noqa: F811
    slurm = slurm_of(2, conf="PartitionName=a100 Nodes=ALL MaxTime=INFINITE State=UP\n")
    environment["SLURM_CONF"] = str(slurm.conf)
    Reader("docs/howto/slurm.md", tmp_path, environment).follow("If the check fails")
