"""Certificates that we make ourselves: authorities, and what they sign.

An authority's key is random and kept in a file, or follows from a secret: then everybody who has the secret can sign,
and nothing has to be handed around.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.hosts import is_address

_CLOCKS_APART = timedelta(minutes=5)
"""A certificate begins to be valid that long ago, for machines whose clocks are behind."""
_BEGINNING, _END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
"""Of an authority that follows from a secret: it is as old and lives as long as that."""
_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the curve: private keys are 1 to one less."""
_CANNOT = (OSError, ValueError, TypeError)


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate with its key.

    Attributes:
        pem: the certificate.
        key: its private key, without a password, as PEM.
    """

    pem: bytes
    key: bytes = field(repr=False)


class CertificateAuthority:
    """Signs certificates.

    Args:
        certificate: what its signatures are verified by.
        key: signs.
    """

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def make(cls, name: str, lifetime: timedelta) -> CertificateAuthority:
        """A new one with a random key."""
        now = datetime.now(UTC)
        return cls._signed_by_itself(name, ec.generate_private_key(_CURVE), now - _CLOCKS_APART, now + lifetime)

    @classmethod
    def of_secret(cls, secret: str) -> CertificateAuthority:
        """The one that follows from a secret: the same key and name wherever that is known."""
        digest = hmac.new(secret.encode(), b"certificate authority", hashlib.sha512).digest()
        key = ec.derive_private_key(int.from_bytes(digest) % (_ORDER - 1) + 1, _CURVE)
        return cls._signed_by_itself("ElasticDL cluster", key, _BEGINNING, _END)

    @classmethod
    def read(cls, certificate: Path, key: Path) -> CertificateAuthority:
        """One that was kept in two files.

        Raises:
            InvalidInputError: they cannot be read, or hold no authority of ours.
        """
        try:
            private = load_pem_private_key(key.read_bytes(), None)
            found = x509.load_pem_x509_certificate(certificate.read_bytes())
        except _CANNOT as error:
            raise InvalidInputError(
                f"the authority in {certificate} and {key} cannot be read: {error}",
                fix="put the files back, or remove both, and new ones are made",
            ) from None
        if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != found.public_key():
            raise InvalidInputError(
                f"the key {key} is not that of {certificate}", fix="put the right ones back, or remove both"
            )
        return cls(found, private)

    @classmethod
    def _signed_by_itself(
        cls, name: str, key: ec.EllipticCurvePrivateKey, begin: datetime, end: datetime
    ) -> CertificateAuthority:
        subject = _subject(name)
        found = (
            _builder(subject, subject, key.public_key(), begin, end)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
            .sign(key, SHA256())
        )
        return cls(found, key)

    @property
    def pem(self) -> bytes:
        """Its own certificate."""
        return self._certificate.public_bytes(Encoding.PEM)

    @property
    def key(self) -> bytes:
        """Its private key, as PEM."""
        return _pem_of_key(self._key)

    @property
    def ends_at(self) -> datetime:
        """When it is no longer valid."""
        return self._certificate.not_valid_after_utc

    def signed(self, pem: bytes) -> bool:
        """Whether a certificate is one of its own."""
        try:
            x509.load_pem_x509_certificate(pem).verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def issue(
        self, names: Iterable[str], lifetime: timedelta, *, key: bytes | None = None, begin: datetime | None = None
    ) -> IssuedCertificate:
        """A certificate for a server or a client.

        Args:
            names: host names and addresses; the first one is also its subject.
            lifetime: how long it is valid from its beginning on.
            key: a private key to keep, as PEM; a new one by default.
            begin: when it begins to be valid; now by default.
        """
        listed = list(names)
        private = ec.generate_private_key(_CURVE) if key is None else _loaded(key)
        start = datetime.now(UTC) if begin is None else begin
        found = (
            _builder(
                _subject(listed[0]),
                self._certificate.subject,
                private.public_key(),
                start - _CLOCKS_APART,
                min(start + lifetime, self.ends_at),
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in listed]), critical=False)
            .sign(self._key, SHA256())
        )
        return IssuedCertificate(found.public_bytes(Encoding.PEM), _pem_of_key(private))


def names_in(pem: bytes) -> tuple[str, ...]:
    """Host names and addresses that the first certificate of a file is for.

    Raises:
        InvalidInputError: there is no certificate in it.
    """
    try:
        found = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    except ValueError as error:
        raise _unreadable(error) from None
    addresses = found.value.get_values_for_type(x509.IPAddress)
    return (*found.value.get_values_for_type(x509.DNSName), *(str(address) for address in addresses))


def end_of(pem: bytes) -> datetime:
    """When the first certificate of a file is no longer valid.

    Raises:
        InvalidInputError: there is no certificate in it.
    """
    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc
    except ValueError as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> InvalidInputError:
    return InvalidInputError(f"the certificate cannot be read: {error}", fix="give a certificate as PEM")


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> x509.Name:
    # A common name has 64 characters at most; who it is for stands in the alternative names, which have room.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _alternative(name: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(name)) if is_address(name) else x509.DNSName(name)


def _loaded(key: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        found = load_pem_private_key(key, None)
    except _CANNOT as error:
        raise InvalidInputError(f"the key cannot be read: {error}", fix="remove it, and a new one is made") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise InvalidInputError("the key is not one of ours", fix="remove it, and a new one is made")
    return found


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
