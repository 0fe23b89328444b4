from tests.storage.conftest import azurite, blob  # noqa: F401 - fixtures
