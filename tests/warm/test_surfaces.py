"""What users see of warm starts and switch: the command line, the line magic, the doctor."""

import pytest

from distdl_jupyter import cli, submit
from distdl_jupyter.core.errors import InvalidSpec
from distdl_jupyter.magic import topics
from distdl_jupyter.warm import asking, place, report, settings

pytestmark = pytest.mark.timeout(300)


def test_the_command_tells_of_a_template_and_its_memory(distdl_home, capsys):
    assert submit(abs, (-3,), distributed_backend="plain").result(timeout=120) == 3
    assert cli.main(["warm"]) == 0
    said = capsys.readouterr().out
    assert "Warm starts are on; a template that nobody needs ends after 30 minutes." in said
    assert place.of().python in said
    assert "horovod.torch" in said
    assert "MB of memory" in said
    resident, share = report.memory(asking.status(place.of())["pid"])
    assert 10 * 2**20 < share <= resident


def test_start_waits_until_a_template_is_ready_and_stop_until_it_has_gone(own_home, capsys):
    assert cli.main(["warm", "start", "--idle-minutes", "5"]) == 0
    pid = asking.status(place.of())["pid"]
    assert f"pid {pid}" in capsys.readouterr().out
    assert cli.main(["warm", "start"]) == 0
    assert asking.status(place.of())["pid"] == pid
    assert "after 5 minutes" in capsys.readouterr().out
    assert cli.main(["warm", "stop"]) == 0
    assert not asking.is_being_made(place.of())
    assert "No template runs" in capsys.readouterr().out


def test_stop_ends_a_template_that_is_still_being_prepared(own_home):
    asking.make(place.of())
    while not asking.is_being_made(place.of()):
        pass
    assert asking.stop(place.of())
    assert not asking.is_being_made(place.of())


def test_the_line_magic_switches(own_home, capsys):
    topics.warm({"off": ""})
    assert capsys.readouterr().out.startswith("Warm starts are off, by the settings.")
    assert settings.switched_off() == "the settings"
    assert [row.status for row in report.rows()] == ["absent"]
    topics.warm({"on": "", "idle_minutes": "2.5"})
    assert settings.read() == settings.Settings(enabled=True, idle_minutes=2.5)
    assert [row.status for row in report.rows()] == ["ok"]
    for wrong in ({"of": ""}, {"on": "", "off": ""}, {"idle_minutes": "soon"}, {"idle_minutes": "0"}):
        with pytest.raises(InvalidSpec):
            topics.warm(wrong)
    assert settings.read() == settings.Settings(enabled=True, idle_minutes=2.5)


def test_damaged_settings_are_none(own_home):
    settings.change(enabled=False)
    (place.folder() / "settings.json").write_text("{")
    assert settings.read() == settings.Settings()


def test_the_variable_wins(own_home, monkeypatch):
    monkeypatch.setenv("DISTDL_WARM", "off")
    assert settings.switched_off() == "DISTDL_WARM"
    assert "Unset DISTDL_WARM" in report.lines()[0]
