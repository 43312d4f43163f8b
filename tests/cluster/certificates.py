"""A certificate authority of a test's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from repertory.cluster.wire.http import PeerTls

KEY_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class PeerAuthority:
    """Signs what it is asked for, into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {folder.name}")])
        self._ca = folder / "ca.pem"
        self._ca.write_bytes(self._signed(self._name, self._key, is_ca=True))

    def tls(self, name: str) -> PeerTls:
        """The files of a new peer."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate, key_path = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(self._signed(subject, key, is_ca=False))
        form = serialization.PrivateFormat.PKCS8
        key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        return PeerTls(certificate=str(certificate), key=str(key_path), ca=str(self._ca))

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_ca: bool) -> bytes:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        # Without the following, Python 3.13 and newer refuse a certificate.
        usage = dict.fromkeys(KEY_USAGES, False) | {"key_cert_sign": is_ca, "digital_signature": not is_ca}
        builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority, critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
