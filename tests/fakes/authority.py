"""A certificate authority for tests: what it issues is real, and lasts as long as a test says."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

DAY_S = 86_400.0
LOCALHOST: tuple[x509.GeneralName, ...] = (
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
)


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, in PEM."""

    chain: bytes
    key: bytes
    serial: int

    def write(self, folder: Path, name: str = "server") -> tuple[str, str]:
        """Write both as a rotation does, each in one go, and return their paths."""
        paths = (folder / f"{name}.pem", folder / f"{name}.key")
        for path, content in zip(paths, (self.chain, self.key), strict=True):
            replacement = path.with_suffix(".new")
            replacement.write_bytes(content)
            replacement.replace(path)
        return str(paths[0]), str(paths[1])


class Authority:
    def __init__(self, name: str = "Test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject([name])
        self.pem = _pem(self._sign(self._name, self._key, (), is_authority=True))

    def write(self, folder: Path, name: str = "ca") -> str:
        path = folder / f"{name}.pem"
        path.write_bytes(self.pem)
        return str(path)

    def server(self, **options: Any) -> Issued:
        """Issue a certificate for this machine."""
        return self.issue("gateway", LOCALHOST, **options)

    def issue(
        self,
        common_names: str | Sequence[str] = (),
        names: Sequence[x509.GeneralName] = (),
        *,
        rsa_bits: int = 0,
        password: bytes | None = None,
        purpose: ObjectIdentifier | None = None,
        starts_in_s: float = -DAY_S,
        expires_in_s: float = DAY_S,
    ) -> Issued:
        key: Any = rsa.generate_private_key(65537, rsa_bits) if rsa_bits else ec.generate_private_key(ec.SECP256R1())
        subject = _subject([common_names] if isinstance(common_names, str) else common_names)
        certificate = self._sign(
            subject, key, names, purpose=purpose, starts_in_s=starts_in_s, expires_in_s=expires_in_s
        )
        encryption = BestAvailableEncryption(password) if password else NoEncryption()
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        return Issued(_pem(certificate), key_pem, certificate.serial_number)

    def _sign(
        self,
        subject: x509.Name,
        key: Any,
        names: Sequence[x509.GeneralName],
        *,
        is_authority: bool = False,
        purpose: ObjectIdentifier | None = None,
        starts_in_s: float = -DAY_S,
        expires_in_s: float = DAY_S,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(seconds=min(starts_in_s, expires_in_s - 1)))
            .not_valid_after(now + datetime.timedelta(seconds=expires_in_s))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if purpose is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


FOR_SERVERS = ExtendedKeyUsageOID.SERVER_AUTH
FOR_CLIENTS = ExtendedKeyUsageOID.CLIENT_AUTH


def _subject(common_names: Sequence[str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in common_names])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)
