from tests.azurite.fixtures import azurite, blob_proxy  # noqa: F401
from tests.standin.fixtures import certificates, connections, trusted  # noqa: F401
