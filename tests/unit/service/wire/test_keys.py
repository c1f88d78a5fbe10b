"""Private keys: the ways people paste them, mistakes, and the algorithms that fit each key."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from sendoff.errors import CredentialsError
from sendoff.service.private_key import SigningKey, algorithm_for, certificate_end, read_private_key

Keys = dict[str, SigningKey]


def pem(
    key: SigningKey | ed25519.Ed25519PrivateKey | dsa.DSAPrivateKey,
    layout: PrivateFormat = PrivateFormat.PKCS8,
    encryption: KeySerializationEncryption | None = None,
) -> str:
    return key.private_bytes(Encoding.PEM, layout, encryption or NoEncryption()).decode()


def refusal(text: str, passphrase: str | None = None) -> str:
    with pytest.raises(CredentialsError) as error:
        read_private_key(text, passphrase)
    assert error.value.__suppress_context__ or error.value.__context__ is None
    return str(error.value)


CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
PASTED: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "with backslash and n for each line end": lambda text: text.replace("\n", "\\n"),
    "with backslash r and n": lambda text: text.replace("\n", "\\r\\n"),
    "with spaces, as a one-line field makes of it": lambda text: text.replace("\n", " ").strip(),
    "with Windows line ends": lambda text: text.replace("\n", "\r\n"),
    "indented, within quotes": lambda text: '  "' + text.replace("\n", "\n    ") + '"',
    "without line ends at all": lambda text: text.replace("\n", ""),
    "with a certificate before it": lambda text: f"{CERTIFICATE}\n{text}",
    "with a byte order mark": lambda text: "\ufeff" + text,
}


@pytest.mark.parametrize("how", PASTED)
@pytest.mark.parametrize("layout", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("kind", ["RS256", "ES384"])
def test_a_key_is_understood_however_it_was_pasted(
    keys: Keys, kind: str, layout: PrivateFormat, how: str
) -> None:
    read = read_private_key(PASTED[how](pem(keys[kind], layout)))
    assert read.public_key() == keys[kind].public_key()


@pytest.mark.parametrize("how", PASTED)
@pytest.mark.parametrize("layout", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_an_encrypted_key_needs_its_passphrase(keys: Keys, layout: PrivateFormat, how: str) -> None:
    text = PASTED[how](pem(keys["RS256"], layout, BestAvailableEncryption(b"open sesame")))

    assert read_private_key(text, "open sesame").public_key() == keys["RS256"].public_key()
    assert refusal(text) == "the private key is encrypted; enter its passphrase as well"
    assert "the passphrase is wrong" in refusal(text, "close sesame")


def test_a_passphrase_for_a_key_that_needs_none_does_no_harm(keys: Keys) -> None:
    assert read_private_key(pem(keys["ES256"]), "open sesame").public_key() == keys["ES256"].public_key()


def certificate(key: SigningKey) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Sendoff")])
    now = datetime(2026, 11, 20, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def public(key: SigningKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@pytest.mark.parametrize("how", PASTED)
def test_the_end_of_a_certificate_beside_its_key_is_known(
    keys: Keys, certified: Callable[[SigningKey, datetime], str], how: str
) -> None:
    ends = datetime(2026, 12, 4, 12, tzinfo=UTC)
    text = pem(keys["ES256"]) + certified(keys["ES256"], ends)
    assert certificate_end(PASTED[how](text), keys["ES256"]) == ends


def test_the_newest_certificate_of_a_key_counts_and_those_of_other_keys_do_not(
    keys: Keys, certified: Callable[[SigningKey, datetime], str]
) -> None:
    old, new, later = (datetime(2026 + year, 1, 1, tzinfo=UTC) for year in range(3))
    chain = [
        certified(keys["ES256"], old),
        certified(keys["ES256"], new),
        certified(keys["ES384"], later),
        CERTIFICATE,
    ]
    assert certificate_end("".join(chain), keys["ES256"]) == new
    assert certificate_end(pem(keys["ES256"]) + CERTIFICATE, keys["ES256"]) is None


@pytest.mark.rule("2.2/key", "5.1/public_key", side="client")
def test_a_public_key_or_certificate_pasted_by_mistake_is_named(keys: Keys) -> None:
    assert refusal(public(keys["RS256"])).startswith("this is a public key;")
    assert refusal(certificate(keys["ES256"])).startswith("this is a certificate;")


def test_a_key_for_ssh_is_named_with_the_command_that_converts_it(keys: Keys) -> None:
    assert "ssh-keygen -p -m PKCS8" in refusal(pem(keys["RS256"], PrivateFormat.OpenSSH))


@pytest.mark.parametrize(
    "key", [ed25519.Ed25519PrivateKey.generate(), dsa.generate_private_key(2048)], ids=["ed25519", "dsa"]
)
def test_a_key_of_another_kind_is_refused(key: ed25519.Ed25519PrivateKey | dsa.DSAPrivateKey) -> None:
    assert refusal(pem(key)).startswith("the private key is neither RSA nor EC")


def test_a_cut_or_damaged_key_is_refused(keys: Keys) -> None:
    lines = pem(keys["RS256"]).splitlines()
    assert "its last line" in refusal("\n".join(lines[:-1]))
    assert "a part of it is missing" in refusal("\n".join([*lines[:5], lines[-1]]))
    assert "a part of it is missing" in refusal("\n".join([lines[0], "no base64!", lines[-1]]))


def test_an_rsa_key_whose_numbers_do_not_fit_is_refused(keys: Keys) -> None:
    key = keys["RS256"]
    assert isinstance(key, rsa.RSAPrivateKey)
    der = bytearray(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))
    modulus = key.public_key().public_numbers().n.to_bytes(256, "big")
    der[bytes(der).index(modulus) + 100] ^= 1
    text = f"-----BEGIN PRIVATE KEY-----\n{b64encode(der).decode()}\n-----END PRIVATE KEY-----"
    assert refusal(text).startswith("the private key is damaged")


@pytest.mark.parametrize("text", ["", "hunter2", "/etc/keys/sendoff.pem", "-----BEGIN-----"])
def test_what_is_no_key_is_told_as_such_and_not_quoted(text: str) -> None:
    said = refusal(text)
    assert said.startswith("this is not a private key in PEM form")
    assert not text or text not in said


@pytest.mark.parametrize(
    ("key", "wanted", "algorithm"),
    [
        # the strongest that the key is long enough for
        ("RS256", None, "RS256"),
        ("RS384", None, "RS384"),
        ("RS512", None, "RS512"),
        # an EC key uses the algorithm of its curve
        ("ES256", None, "ES256"),
        ("ES384", None, "ES384"),
        ("ES512", None, "ES512"),
        # a long RSA key may use a weaker algorithm
        ("RS512", "RS256", "RS256"),
        ("RS384", "RS256", "RS256"),
        ("ES256", "ES256", "ES256"),
    ],
)
def test_the_algorithm_follows_from_the_key_unless_it_is_set(
    keys: Keys, key: str, wanted: str | None, algorithm: str
) -> None:
    assert algorithm_for(keys[key], wanted) == algorithm


NEEDS = {
    "RS256": "RS256 needs an RSA key of 2048 bits or more; this is ",
    "RS384": "RS384 needs an RSA key of 4096 bits or more; this is ",
    "RS512": "RS512 needs an RSA key of 8192 bits or more; this is ",
    "ES256": "ES256 needs an EC key on the curve P-256; this is ",
    "ES384": "ES384 needs an EC key on the curve P-384; this is ",
}


@pytest.mark.rule(
    "5.1/algorithms", "5.1/RS256", "5.1/RS384", "5.1/RS512", "5.1/ES256", "5.1/ES384", "5.1/ES512",
    "8/key_sizes", side="client",
)  # fmt: skip
@pytest.mark.parametrize(
    ("key", "wanted", "message"),
    [
        ("RS256", "RS384", NEEDS["RS384"] + "an RSA key of 2048 bits, which can sign with RS256"),
        ("RS384", "RS512", NEEDS["RS512"] + "an RSA key of 4484 bits, which can sign with RS256 or RS384"),
        ("ES256", "ES384", NEEDS["ES384"] + "an EC key on the curve P-256, which can sign with ES256"),
        ("RS256", "ES256", NEEDS["ES256"] + "an RSA key of 2048 bits, which can sign with RS256"),
        ("ES512", "RS256", NEEDS["RS256"] + "an EC key on the curve P-521, which can sign with ES512"),
        (
            "short",
            None,
            "an RSA key of 1024 bits is not accepted; use an RSA key of 2048 bits or more, or an EC",
        ),
        (
            "short",
            "RS256",
            "an RSA key of 1024 bits is not accepted; use an RSA key of 2048 bits or more, or an EC",
        ),
        ("bitcoin", None, "an EC key on the curve secp256k1 is not accepted; use"),
        ("RS256", "none", "the algorithm must be one of RS256, RS384, RS512, ES256, ES384, ES512"),
        ("RS256", "HS256", "the algorithm must be one of RS256"),
    ],
)
def test_a_key_that_will_not_do_is_refused_saying_which_would(
    keys: Keys, key: str, wanted: str | None, message: str
) -> None:
    with pytest.raises(CredentialsError) as error:
        algorithm_for(keys[key], wanted)
    assert str(error.value).startswith(message)
