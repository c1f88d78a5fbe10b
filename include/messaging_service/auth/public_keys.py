"""Public keys of client IDs: accepted formats, allowed algorithms, and validity (section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

_RSA_MINIMUM = {"RS256": 2048, "RS384": 4096, "RS512": 8192}
_EC_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class KeyRefusedError(ValueError):
    """The service does not accept a pasted key; the text says what it accepts."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies assertions, its allowed algorithms, and the validity of its certificate, if it has one."""

    key: RSAPublicKey | EllipticCurvePublicKey
    algorithms: tuple[str, ...]
    valid_from: datetime | None = None
    expires_at: datetime | None = None

    def check_validity(self, now: datetime) -> None:
        """Raise KeyRefusedError if the certificate is not valid at ``now``; an SPKI key is always valid."""
        if self.valid_from and now < self.valid_from:
            raise KeyRefusedError(f"the certificate is not valid before {self.valid_from.isoformat()}")
        if self.expires_at and now >= self.expires_at:
            raise KeyRefusedError(f"the certificate expired at {self.expires_at.isoformat()}")


def read_public_key(pem: str) -> PublicKey:
    """Read an X.509 certificate or an SPKI public key in PEM form, or raise KeyRefusedError."""
    text = pem.strip()
    if "PRIVATE KEY-----" in text:
        raise KeyRefusedError(
            "this is a private key: keep it secret, and paste its public key or certificate instead"
        )
    try:
        if "BEGIN CERTIFICATE-----" in text:
            return _from_certificate(x509.load_pem_x509_certificate(text.encode()))
        if "BEGIN PUBLIC KEY-----" in text:
            key = load_pem_public_key(text.encode())
            return PublicKey(_usable(key), _algorithms(_usable(key)))
    except (UnsupportedAlgorithm, KeyRefusedError) as error:
        raise KeyRefusedError(str(error)) from None
    except ValueError:
        raise KeyRefusedError("the PEM text is damaged: copy all lines of the file again") from None
    raise KeyRefusedError("expected PEM text with BEGIN CERTIFICATE (X.509) or BEGIN PUBLIC KEY (SPKI)")


def _from_certificate(certificate: x509.Certificate) -> PublicKey:
    key = _usable(certificate.public_key())
    return PublicKey(key, _algorithms(key), certificate.not_valid_before_utc, certificate.not_valid_after_utc)


def _usable(key: object) -> RSAPublicKey | EllipticCurvePublicKey:
    if isinstance(key, RSAPublicKey | EllipticCurvePublicKey):
        return key
    raise KeyRefusedError("the key must be RSA, or EC on the curve P-256, P-384 or P-521")


def _algorithms(key: RSAPublicKey | EllipticCurvePublicKey) -> tuple[str, ...]:
    if isinstance(key, EllipticCurvePublicKey):
        if key.curve.name in _EC_CURVES:
            return (_EC_CURVES[key.curve.name],)
        raise KeyRefusedError(f"the curve {key.curve.name} is not supported: use P-256, P-384 or P-521")
    allowed = tuple(name for name, bits in _RSA_MINIMUM.items() if key.key_size >= bits)
    if not allowed:
        raise KeyRefusedError(f"an RSA key must have at least 2048 bits; this one has {key.key_size}")
    return allowed
