"""Private keys that sign assertions: how people paste them, and the algorithms that fit each key (section 5.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sendoff.errors import CredentialsError

SigningKey = RSAPrivateKey | EllipticCurvePrivateKey

RSA_BITS: Mapping[str, int] = {"RS256": 2048, "RS384": 4096, "RS512": 8192}
"""The minimum size of an RSA key in bits, for each algorithm."""

EC_CURVES: Mapping[str, str] = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
"""The required curve of each algorithm."""

_CURVE_NAMES = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+?)-----(.*?)-----END \1-----", re.DOTALL)
_ENCRYPTION = re.compile(r"Proc-Type:\s*4,ENCRYPTED\s*DEK-Info:\s*([A-Z0-9-]+,(?:[0-9A-F]{32}|[0-9A-F]{16}))")


def read_private_key(pem: str, passphrase: str | None = None) -> SigningKey:
    """Read a private key in PEM form as people paste it. Raise CredentialsError if that fails.

    Line breaks may be those of Windows, spaces, or the two characters backslash and n.
    """
    label, block = _private_block(_unescaped(pem))
    encrypted = label.startswith("ENCRYPTED") or "Proc-Type:" in block
    if encrypted and not passphrase:
        raise CredentialsError("the private key is encrypted; enter its passphrase as well")
    secret = passphrase.encode() if encrypted and passphrase else None
    try:
        # Full validation tests the primes again, which takes five seconds for 8192 bits. The key comes from its owner.
        key = load_pem_private_key(block.encode(), secret, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        hint = "the passphrase is wrong, or " if encrypted else ""
        raise CredentialsError(
            f"the private key cannot be read: {hint}a part of it is missing; copy it again from its file, all lines"
        ) from None
    if not isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey):
        raise CredentialsError("the private key is neither RSA nor EC; the service accepts only those")
    if isinstance(key, RSAPrivateKey) and not _is_whole(key):
        raise CredentialsError("the private key is damaged: copy it again from its file, all lines")
    return key


def _is_whole(key: RSAPrivateKey) -> bool:
    numbers = key.private_numbers()
    return numbers.p * numbers.q == numbers.public_numbers.n


def certificate_end(pem: str, key: SigningKey) -> datetime | None:
    """Return the end of the certificate that was pasted beside its private key, or None.

    If several certificates belong to the key, the latest end counts, because the others were renewed. Certificates of
    other keys, such as those of authorities, are ignored, and so are unreadable ones: only the service needs them.
    """
    return max(_ends_of_certificates(_unescaped(pem), key), default=None)


def _ends_of_certificates(text: str, key: SigningKey) -> Iterator[datetime]:
    for label, body in _BLOCK.findall(text):
        if label != "CERTIFICATE":
            continue
        try:
            certificate = x509.load_pem_x509_certificate(_mended(label, body).encode())
            if certificate.public_key() == key.public_key():
                yield certificate.not_valid_after_utc
        except (ValueError, UnsupportedAlgorithm):
            continue


def algorithm_for(key: SigningKey, wanted: str | None = None) -> str:
    """Return the algorithm to sign with: ``wanted``, or the strongest one that the key is long enough for.

    Raise CredentialsError if the service would refuse the key. The message names keys that work.
    """
    if wanted is not None and wanted not in (*RSA_BITS, *EC_CURVES):
        raise CredentialsError(f"the algorithm must be one of {', '.join((*RSA_BITS, *EC_CURVES))}")
    possible = _possible(key)
    if not possible:
        raise CredentialsError(f"{_described(key)} is not accepted; {_ANY_KEY}")
    if wanted is None:
        return possible[-1]
    if wanted not in possible:
        raise CredentialsError(
            f"{wanted} needs {_needed(wanted)}; this is {_described(key)}, which can sign with {' or '.join(possible)}"
        )
    return wanted


def _possible(key: SigningKey) -> list[str]:
    if isinstance(key, RSAPrivateKey):
        return [name for name, bits in RSA_BITS.items() if key.key_size >= bits]
    return [name for name, curve in EC_CURVES.items() if key.curve.name == curve]


def _needed(algorithm: str) -> str:
    if algorithm in RSA_BITS:
        return f"an RSA key of {RSA_BITS[algorithm]} bits or more"
    return f"an EC key on the curve {_CURVE_NAMES[EC_CURVES[algorithm]]}"


_ANY_KEY = "use an RSA key of 2048 bits or more, or an EC key on one of the curves P-256, P-384 and P-521"


def _described(key: SigningKey) -> str:
    if isinstance(key, RSAPrivateKey):
        return f"an RSA key of {key.key_size} bits"
    return f"an EC key on the curve {_CURVE_NAMES.get(key.curve.name, key.curve.name)}"


def _private_block(text: str) -> tuple[str, str]:
    """Find the private key in the pasted text, and restore its line breaks."""
    blocks = dict(_BLOCK.findall(text))
    for label, body in blocks.items():
        if label == "OPENSSH PRIVATE KEY":
            raise CredentialsError("this is a key for SSH; convert a copy: ssh-keygen -p -m PKCS8 -f <file>")
        if label.endswith("PRIVATE KEY"):
            return label, _mended(label, body)
    for label in blocks:
        if "CERTIFICATE" in label:
            raise CredentialsError(
                "this is a certificate; paste its private key here, and upload it to the service"
            )
        if label.endswith("PUBLIC KEY"):
            raise CredentialsError(
                "this is a public key; paste its private key here, and upload it to the service"
            )
    if "PRIVATE KEY-----" in text:
        raise CredentialsError(
            "the private key is incomplete: its last line, -----END ... PRIVATE KEY-----, is missing"
        )
    raise CredentialsError(
        "this is not a private key in PEM form, which starts with -----BEGIN ... PRIVATE KEY-----"
    )


def _unescaped(text: str) -> str:
    return text.replace("\\r", "").replace("\\n", "\n")


def _mended(label: str, body: str) -> str:
    head = ""
    if encryption := _ENCRYPTION.search(body):
        head = f"Proc-Type: 4,ENCRYPTED\nDEK-Info: {encryption[1]}\n\n"
        body = body[encryption.end() :]
    data = "".join(body.split())
    lines = "\n".join(data[start : start + 64] for start in range(0, len(data), 64))
    return f"-----BEGIN {label}-----\n{head}{lines}\n-----END {label}-----\n"
