"""A certificate for 127.0.0.1 and localhost that signs itself, made anew for each run of the tests."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make(folder: Path, *addresses: str) -> tuple[Path, Path]:
    """Return the files of certificate and key; more ``addresses`` than 127.0.0.1 may be given."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Certificates of one name that are trusted together would be taken for each other.
    words = " ".join(["distdl_jupyter tests", *addresses])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, words)])
    now = dt.datetime.now(dt.UTC)
    hosts = [x509.DNSName("localhost")]
    ips = [x509.IPAddress(ipaddress.ip_address(one)) for one in ("127.0.0.1", *addresses)]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=7))
        .add_extension(x509.SubjectAlternativeName([*hosts, *ips]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths
