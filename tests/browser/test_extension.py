"""The installed extension in JupyterLab: every plugin runs, nothing is complained about, texts are in the language."""

import re

import pytest

from tests.browser.conftest import TIMEOUT

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
#: What says nothing of the extension: network interfaces that tests of several hosts make beside this one, upon which
#: Chromium drops requests and Lab asks again; and how long each plugin takes on a slow machine.
OTHERS = re.compile(
    r"net::ERR_NETWORK_CHANGED|^Plugin \S+ (is taking too long|\(with \d+ dependants\) took [\d.]+ms) to activate\.$"
)
OF_JUPYTERLAB = "@jupyterlab/translation-extension:plugin"


@pytest.fixture
def page(chromium):
    context = chromium.new_context()
    context.set_default_timeout(TIMEOUT * 1000)
    yield context.new_page()
    context.close()


def open_lab(page, lab):
    """Load JupyterLab; return what its console says of warnings and errors."""
    said = []

    def hear(message):
        if message.type in ("warning", "error") and not OTHERS.search(message.text):
            said.append(message.text)

    page.on("console", hear)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{lab.url}lab?token={lab.token}&reset")
    page.wait_for_function("() => window.jupyterapp?.restored")
    page.evaluate("() => window.jupyterapp.restored.then(() => null)")
    return said


TEXTS = """async () => {
    const plugins = (await window._JUPYTERLAB['distdl-jupyter'].get('./extension'))().default;
    const { provides } = plugins.find((plugin) => plugin.id === 'distdl-jupyter:plugin');
    const texts = await window.jupyterapp.resolveRequiredService(provides);
    return [texts.__('Distributed training'), texts._n('%1 job', '%1 jobs', 2)];
}"""


def test_every_plugin_is_active_and_nothing_is_complained_about(page, lab):
    said = open_lab(page, lab)
    plugins = page.evaluate(
        """async () => {
            const plugins = (await window._JUPYTERLAB['distdl-jupyter'].get('./extension'))().default;
            return plugins.map(({ id }) => [id, window.jupyterapp.isPluginActivated(id)]);
        }"""
    )
    assert len(plugins) >= 7
    assert [name for name, active in plugins if not active] == []
    assert page.evaluate(TEXTS) == ["Distributed training", "2 jobs"]
    assert said == []


@pytest.mark.full
def test_the_texts_are_in_the_language_of_jupyterlab(page, lab):
    pytest.importorskip("jupyterlab_language_pack_ja_JP")
    lab.settings(OF_JUPYTERLAB, {"locale": "ja_JP"})
    try:
        said = open_lab(page, lab)
        assert page.evaluate(TEXTS) == ["分散学習", "2 件のジョブ"]
        assert said == []
    finally:
        lab.settings(OF_JUPYTERLAB, {})
