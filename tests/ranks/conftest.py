"""Sessions of real ranks: one that the tests of a module share, and one that a test may end as it likes."""

import pytest

from distdl_jupyter import ranks


class Told(list):
    """Collects what ``run`` tells."""

    def __call__(self, event):
        self.append(event)

    def text(self, rank, stream="out"):
        return "".join(e.text for e in self if isinstance(e, ranks.Output) and (e.rank, e.stream) == (rank, stream))

    def notices(self):
        return [event.text for event in self if isinstance(event, ranks.Notice)]

    def results(self):
        return [event for event in self if isinstance(event, ranks.RankResult)]


@pytest.fixture
def told():
    return Told()


@pytest.fixture(scope="module")
def of_the_module(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTDL_HOME", str(tmp_path_factory.mktemp("shared-home")))
        session = ranks.start(process_count_per_node=2, distributed_backend="torch")
        yield session
        session.stop()
        assert session.job.state.value == "completed"


@pytest.fixture
def shared(of_the_module, distdl_home, monkeypatch):
    """Two ranks that stay while the module's tests go on; a test must leave them alive."""
    monkeypatch.setenv("DISTDL_HOME", str(of_the_module.job.folder.path.parent.parent))
    return of_the_module


@pytest.fixture
def started():
    """Start sessions of this test's own; what still lives at its end is stopped."""
    sessions = []

    def start(count=2, backend="torch", **options):
        sessions.append(ranks.start(process_count_per_node=count, distributed_backend=backend, **options))
        return sessions[-1]

    yield start
    for session in sessions:
        session.stop()
