"""A kernel and a server, as those of their own tests."""

from tests.magic.conftest import kernel, notebooks, plain_kernel  # noqa: F401 - fixtures
from tests.server.conftest import jupyter_folders, root, server  # noqa: F401 - fixtures
