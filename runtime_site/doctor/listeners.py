"""The addresses and the certificate of the servers."""

import ssl
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import certifi

from runtime_site.doctor.findings import Finding, duration, error, note, ok, warning
from runtimeconf.model import RuntimeConfig
from runtimeconf.named_keys import WARNING_PERIOD
from system.addresses import Address, bind_problem, holders, is_listening
from system.wallclock import utc_at

_OTHERS = 0o077

#: Trust a certificate that is itself the root, and leave the dates to us (openssl/x509_vfy.h).
_PARTIAL_CHAIN, _NO_CHECK_TIME = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN, 0x20_0000

_RENEW = "Renew the certificate, then run `querykeep reload`."


def addresses(config: RuntimeConfig, own: frozenset[int]) -> Iterator[Finding]:
    """Yield whether the addresses of *config* can be bound; *own* are the processes of the running runtime."""
    for setting, address, is_used in (
        ("runtime.http.bind", config.http.bind, True),
        ("runtime.flight.bind", config.flight.bind, config.flight.enabled),
        ("runtime.metrics.bind", config.metrics.bind, config.metrics.enabled),
    ):
        if not is_used:
            continue
        if (problem := bind_problem(address)) is not None:
            yield error("addresses", problem, f"Set {setting} to an address of this machine that this user may use.")
        elif address.port and is_listening(address.port):
            yield _held(setting, address, frozenset(holders(address.port)), own)
        else:
            yield ok("addresses", f"{setting}: {address} is free.")


def _held(setting: str, address: Address, found: frozenset[int], own: frozenset[int]) -> Finding:
    if found & own:
        return ok("addresses", f"{setting}: the running runtime listens on {address}.")
    if not found and own:
        text = f"{setting}: {address} is in use, by a process that this user cannot see."
        return note("addresses", text, "Run this command as the runtime's user, to see whether it is the runtime.")
    who = f"process {min(found)}" if found else "a process that this user cannot see"
    if found == {1}:
        return note("addresses", f"{setting}: process 1 holds {address}, as for a socket unit of systemd.")
    return error("addresses", f"{setting}: {who} has {address}.", f"Stop that server, or change {setting}.")


def certificate(config: RuntimeConfig) -> Iterator[Finding]:
    """Yield the dates, the chain and the names of the certificate. That its key matches is checked with the YAML."""
    tls, about = config.tls, "certificate"
    if not tls.enabled or tls.certificate_file is None or tls.key_file is None:
        if not (config.http.bind.is_loopback and (config.flight.bind.is_loopback or not config.flight.enabled)):
            text = "TLS is off, and the runtime listens on an address that other machines may reach."
            yield note(about, text, "Set runtime.tls, unless a proxy in front of it has TLS; docs/security.md.")
        return
    if stat.S_IMODE(tls.key_file.stat().st_mode) & _OTHERS:
        yield warning(about, f"Other users may read {tls.key_file}.", f"chmod 600 {tls.key_file}")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tls.certificate_file, tls.key_file, password="")  # never asks on the terminal
    try:
        fields = _verified(server, tls.certificate_file, _PARTIAL_CHAIN | _NO_CHECK_TIME)
    except ssl.SSLCertVerificationError as exc:
        yield error(about, f"Clients refuse it even as their root: {exc.verify_message}.", _RENEW)
        return
    yield from _dates(fields)
    if fields.get("issuer") == fields.get("subject"):
        yield note(about, "It is self-signed: clients must be given it as their root.")
    else:
        yield from _chain(server)
    yield from _names(config, server, tls.certificate_file)


def _dates(fields: dict[str, Any]) -> Iterator[Finding]:
    about, now = "certificate", time.time()
    begin, end = (ssl.cert_time_to_seconds(fields[name]) for name in ("notBefore", "notAfter"))
    if end <= now:
        yield error(about, f"It expired at {utc_at(end)}.", _RENEW)
    elif begin > now:
        yield error(about, f"It is not valid before {utc_at(begin)}.", "Compare the clock of this machine.")
    elif end <= now + WARNING_PERIOD.total_seconds():
        yield warning(about, f"It expires at {utc_at(end)}, in {duration(end - now)}.", _RENEW)
    else:
        yield ok(about, f"It is valid until {utc_at(end)}.")


def _chain(server: ssl.SSLContext) -> Iterator[Finding]:
    try:
        _verified(server, Path(certifi.where()), ssl.VerifyFlags(_NO_CHECK_TIME))
    except ssl.SSLCertVerificationError as exc:
        yield note(
            "certificate",
            f"Clients with the usual roots do not trust it: {exc.verify_message}.",
            "If it is from a public authority, certificate_file lacks the intermediate certificates.",
        )
    else:
        yield ok("certificate", "Its chain leads to a usual root.")


def _names(config: RuntimeConfig, server: ssl.SSLContext, certificate_file: Path) -> Iterator[Finding]:
    """Compare the names of the certificate with `allowed_hosts`, the names that callers use."""
    hosts = [host for host in config.http.allowed_hosts or () if host != "*"]
    names = [host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host for host in hosts]
    wrong = []
    for name in dict.fromkeys(name.strip("[]") for name in names):
        try:
            _verified(server, certificate_file, _PARTIAL_CHAIN | _NO_CHECK_TIME, name)
        except ssl.SSLCertVerificationError:
            wrong.append(name)
    if wrong:
        shown = ", ".join(wrong)
        remedy = "Request a certificate with these names, or correct runtime.http.allowed_hosts."
        yield warning("certificate", f"It is not for {shown}, which callers may use.", remedy)
    elif names:
        yield ok("certificate", "It is for all of runtime.http.allowed_hosts.")


def _verified(server_context: ssl.SSLContext, roots: Path, flags: int, name: str | None = None) -> dict[str, Any]:
    """
    Return the fields of the certificate that a server with this context sends, as a client with these *roots* sees it.

    The handshake takes place in memory. With *name* the certificate must be for that name.

    Raises:
        ssl.SSLCertVerificationError: The client refuses it.
    """
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = name is not None
    client_context.load_verify_locations(roots)
    client_context.verify_flags = ssl.VerifyFlags(flags)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):  # TLS 1.3 takes two rounds
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client.getpeercert() or {}
