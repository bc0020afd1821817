"""What `doctor` says of a certificate."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from runtime_site.doctor import listeners
from runtimeconf.model import HttpConfig, RuntimeConfig, TlsConfig
from system.addresses import Address
from tests.runtime_site.doctor.examining import shown

NOW = datetime.now(UTC)


def config(directory: Path, *hosts: str, days: float = 90, mode: int = 0o600, begin_days: float = -1) -> RuntimeConfig:
    """Return a configuration with a certificate for localhost that ends in so many *days*."""
    authority = trustme.CA()
    begin, end = (NOW + timedelta(days=number) for number in (begin_days, days))
    issued = authority.issue_cert("localhost", "*.example.org", "127.0.0.1", not_before=min(begin, end), not_after=end)
    certificate, key = directory / "c.pem", directory / "k.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    key.chmod(mode)
    return RuntimeConfig(
        file=directory / "runtime.yaml",
        state_dir=directory,
        http=HttpConfig(allowed_hosts=hosts or None),
        tls=TlsConfig(enabled=True, certificate_file=certificate, key_file=key),
    )


@pytest.mark.parametrize(
    ("days", "begin_days", "says"),
    [
        (90, -1, "ok certificate: It is valid until "),
        (7, -1, "warning certificate: It expires at "),
        (-1, -9, "error certificate: It expired at "),
        (90, 2, "error certificate: It is not valid before "),
    ],
)
def test_dates(tmp_path: Path, days: float, begin_days: float, says: str) -> None:
    dates, chain = shown(list(listeners.certificate(config(tmp_path, days=days, begin_days=begin_days))))

    assert dates.startswith(says)
    assert chain.startswith(
        "note certificate: Clients with the usual roots do not trust it: unable to get local issuer"
    )


def test_names_and_rights(tmp_path: Path) -> None:
    hosts = ("localhost:8090", "127.0.0.1", "a.example.org", "b.a.example.org", "[::1]", "*")

    rights, _, _, names = shown(list(listeners.certificate(config(tmp_path, *hosts, mode=0o640))))

    assert rights == f"warning certificate: Other users may read {tmp_path}/k.pem. chmod 600 {tmp_path}/k.pem"
    assert names.startswith("warning certificate: It is not for b.a.example.org, ::1, which callers may use.")
    assert shown(list(listeners.certificate(config(tmp_path, "localhost", "*"))))[-1] == (
        "ok certificate: It is for all of runtime.http.allowed_hosts."
    )


def test_a_self_signed_certificate(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    signed = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), NOW, NOW + timedelta(days=90)
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    made = config(tmp_path)
    assert made.tls.certificate_file is not None
    assert made.tls.key_file is not None
    made.tls.certificate_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    made.tls.key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )

    _, root = shown(list(listeners.certificate(made)))

    assert root == "note certificate: It is self-signed: clients must be given it as their root."


@pytest.mark.parametrize(
    ("found", "own", "says"),
    [
        ({7, 8}, {8}, "ok addresses: S: the running runtime listens on 127.0.0.1:80."),
        (set(), {8}, "note addresses: S: 127.0.0.1:80 is in use, by a process that this user cannot see."),
        ({1}, set(), "note addresses: S: process 1 holds 127.0.0.1:80, as for a socket unit of systemd."),
        (set(), set(), "error addresses: S: a process that this user cannot see has 127.0.0.1:80."),
        ({9}, {8}, "error addresses: S: process 9 has 127.0.0.1:80. Stop that server, or change S."),
    ],
)
def test_who_holds_an_address(found: set[int], own: set[int], says: str) -> None:
    (line,) = shown([listeners._held("S", Address("127.0.0.1", 80), frozenset(found), frozenset(own))])

    assert line.startswith(says)


def test_without_tls(tmp_path: Path) -> None:
    local = RuntimeConfig(file=tmp_path / "runtime.yaml", state_dir=tmp_path)
    reachable = RuntimeConfig(
        file=tmp_path / "runtime.yaml", state_dir=tmp_path, http=HttpConfig(bind=Address("192.0.2.1", 80))
    )

    assert shown(list(listeners.certificate(local))) == []
    assert shown(list(listeners.certificate(reachable)))[0].startswith("note certificate: TLS is off")
