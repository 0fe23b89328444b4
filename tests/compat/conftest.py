from tests.data.conftest import azurite, blob  # noqa: F401 - fixtures
