"""The secret of a job in the address at which its Horovod ranks meet.

Horovod asks its rendezvous server for ``http://ADDRESS:PORT/scope/key`` and knows no password; what it puts between
``http://`` and the port is the address that it was told, word for word. So the address holds a secret of the job's own,
``10.0.0.4:29500/SECRET``, made of the job's nonce, which its processes have in their environment: nobody has to hand it
over, and it stands on no command line. The server turns away who does not know it.
"""

from __future__ import annotations

from collections.abc import MutableMapping

ADDRESS, PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"


def of(nonce: str) -> str:
    """Return the secret of the job with this nonce, "" without one."""
    from hashlib import sha256  # torch brings it along; a plain rank needs none of it

    return sha256(f"rendezvous {nonce}".encode()).hexdigest()[:32] if nonce else ""


def put(environment: MutableMapping[str, str]) -> None:
    """Put the secret into the address of a rank's environment, where there is one without."""
    address, port = environment.get(ADDRESS, ""), environment.get(PORT, "")
    if address and port and "/" not in address and (nonce := environment.get("DISTDL_NONCE")):
        environment[ADDRESS] = f"{address}:{port}/{of(nonce)}"
