"""A private authority and the certificate of a server on this machine, for tests with TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Authority:
    """The certificate of an authority (PEM), and the TLS settings of a server at 127.0.0.1 that it trusts."""

    certificate: str
    server: ssl.SSLContext


def private_authority(folder: Path) -> Authority:
    """Make an authority that no system trusts."""
    key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    certificate = _signed("Test authority", key, "Test authority", key, x509.BasicConstraints(True, None))
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")])
    server = _signed("127.0.0.1", server_key, "Test authority", key, names)
    (folder / "server.pem").write_text(server)
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.key").write_bytes(server_key.private_bytes(*plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return Authority(certificate, context)


def _signed(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> str:
    subject_name, issuer_name = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (subject, issuer))
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject_name)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    )
    if isinstance(extension, x509.BasicConstraints):
        usage = dict.fromkeys(
            ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
        )
        usage |= {"key_cert_sign": True, "crl_sign": True, "encipher_only": False, "decipher_only": False}
        builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = builder.add_extension(identifier, critical=False).add_extension(authority, critical=False)
    signed = builder.sign(issuer_key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()
