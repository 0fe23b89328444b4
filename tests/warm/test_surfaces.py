"""What users see of warm starts and switch: the command line, the line magic, the doctor."""

import fcntl
import json
import subprocess
from pathlib import Path

import psutil
import pytest

from distdl_jupyter import cli
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.magic.commands import create_magics
from distdl_jupyter.magic.session import Session
from distdl_jupyter.node import processes
from distdl_jupyter.warm import report
from distdl_jupyter.warm import start as warm_start

pytestmark = pytest.mark.timeout(300)


def test_start_waits_until_a_template_is_ready_and_stop_until_it_has_gone(own_home, capsys):
    assert cli.main(["warm", "start", "--idle-minutes", "5"]) == 0
    pid = warm_start.get_status(warm_start.get_template_files())["pid"]
    assert f"pid {pid}" in capsys.readouterr().out
    assert cli.main(["warm", "start"]) == 0
    assert warm_start.get_status(warm_start.get_template_files())["pid"] == pid
    assert "after 5 minutes" in capsys.readouterr().out
    assert cli.main(["warm", "stop"]) == 0
    assert not warm_start.has_template(warm_start.get_template_files())
    assert "No template is running" in capsys.readouterr().out


@pytest.mark.fault("entry", "no signal to a process that is not proven to be the template")
@pytest.mark.parametrize("other", [{"host": "another"}, {"boot": "0" * 36}, {"started": 1}, None])
def test_stop_signals_no_process_that_is_not_proven_to_be_the_template(own_home, other):
    """The folder may be shared by several hosts, and the number in the file may be anybody's here."""
    where = warm_start.get_template_files()
    where.folder.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"]) as innocent, where.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        true = {"pid": innocent.pid, "started": processes._read_start_time(innocent.pid)}
        mark = {**json.loads(processes.make_mark()), **true, **(other or {})}
        lock.write(json.dumps(mark) if other else str(innocent.pid))
        lock.flush()
        assert not warm_start.stop(where, timeout=0.2)
        assert innocent.poll() is None
        innocent.kill()


def test_stop_ends_those_that_have_only_begun_to_be_made(own_home):
    where = warm_start.get_template_files()
    warm_start.start_template(where)
    warm_start.start_template(where)
    warm_start.stop(where)
    found = psutil.process_iter(["cmdline"])
    made = [process for process in found if "distdl_jupyter.warm.template" in (process.info["cmdline"] or ())]
    ours = [process for process in made if Path(process.cwd()) == where.folder]
    assert not psutil.wait_procs(ours, 20)[1]
    assert not warm_start.has_template(where)
    warm_start.start_template(where)
    assert warm_start.wait_until_ready(where)


def test_the_line_magic_switches(own_home, capsys):
    config = create_magics(Session(None))["dist_config"]
    config("warm off")
    assert capsys.readouterr().out.startswith("Warm starts are switched off by the settings.")
    assert warm_start.find_disabling_setting() == "the settings"
    assert [row.status for row in report.build_doctor_rows()] == ["absent"]
    config("warm on idle_minutes=2.5")
    assert warm_start.read_settings() == warm_start.Settings(enabled=True, idle_minutes=2.5)
    assert [row.status for row in report.build_doctor_rows()] == ["ok"]
    for wrong in ("of", "on off", "idle_minutes=soon", "idle_minutes=0", "port=3"):
        with pytest.raises(InvalidSpec):
            config(f"warm {wrong}")
    assert warm_start.read_settings() == warm_start.Settings(enabled=True, idle_minutes=2.5)


def test_damaged_settings_are_none(own_home):
    warm_start.change_settings(enabled=False)
    (warm_start.get_templates_folder() / "settings.json").write_text("{")
    assert warm_start.read_settings() == warm_start.Settings()


def test_the_variable_wins(own_home, monkeypatch):
    monkeypatch.setenv("DISTDL_WARM", "off")
    assert warm_start.find_disabling_setting() == "DISTDL_WARM"
    assert "To switch them on, unset DISTDL_WARM." in report.describe()[0]
