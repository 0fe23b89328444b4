from tests.azurite.fixtures import azurite, blob_proxy  # noqa: F401
from tests.standin.fixtures import certificates, trusted  # noqa: F401
