"""Checks that need no running runtime: configuration, state directory, addresses, certificate, machine."""

import ctypes
import os
import shutil
import ssl
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from authkeys import salt
from authkeys.errors import SaltError
from datasources.refresh.dry_run import dry_run
from datasources.refresh.loader_process import Disk
from doctor.findings import Finding, Level, duration, size
from queryengine.manifest import Column, Manifest, ManifestError, read_manifest, snapshot_path
from runtimeconf.errors import ConfigError
from runtimeconf.loader import load, state_dir_of
from runtimeconf.model import WARNING_PERIOD, RuntimeConfig, TlsConfig
from supervisor import startup
from system import sandbox
from system.addresses import Address, bind_problem, holders, is_listening
from system.errors import StateDirectoryError
from system.memory import memory_bytes
from system.state_directory import judge_state_dir
from system.wallclock import utc_at, utc_in

_OTHERS = 0o077

#: The result of adjtimex(2) if the clock is not synchronised, and a size that no `struct timex` exceeds.
_TIME_ERROR = 5
_TIMEX_BYTES = 256
#: The clocks of two machines that share a disk may differ by this many seconds.
_TOLERANCE_S = 5.0

#: Trust a certificate that is its own root, and leave the dates to our own check (openssl/x509_vfy.h).
_LENIENT = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(0x20_0000)


class Configuration(Struct):
    """The readable part of the configuration file *file*: the whole configuration, or at least the state directory."""

    file: Path
    config: RuntimeConfig | None = None
    state_dir: Path | None = None

    def read(self) -> Iterator[Finding]:
        """Read the file and yield its problems."""
        about = "configuration"
        try:
            self.state_dir = state_dir_of(self.file)
            self.config = load(self.file, os.environ)
        except ConfigError as exc:
            for fault in exc.faults:
                fix = "Correct the configuration; docs/configuration.md describes each field."
                yield Finding("error", about, str(fault), fix if fault.line else "Set --config to the file.")
            return
        self.state_dir = self.config.state_dir
        yield Finding("ok", about, f"{self.config.file} has no errors: datasets {len(self.config.datasets):,}.")
        for sentence in self.config.warnings:
            yield Finding("warning", about, sentence, "See Warnings in docs/configuration.md.")
        try:
            self.config = startup.with_checked_statements(self.config)
        except ConfigError as exc:
            for fault in exc.faults:
                yield Finding("error", "sql", str(fault), "Correct the statement; docs/sql.md lists what is allowed.")


def views(config: RuntimeConfig, known: Mapping[str, tuple[Column, ...]]) -> Iterator[Finding]:
    """Yield the views, indexes and the like that do not fit the *known* columns of the datasets."""
    try:
        faults = dry_run(config, known).errors
    except ConfigError:  # `Configuration.read` has reported the views that are not allowed.
        yield Finding("note", "sql", "Views are compared with the columns of the sources once all of them are allowed.")
        return
    for fault in faults:
        yield Finding("error", "sql", str(fault), "Correct the statement or the dataset's columns.")


def state_directory(state_dir: Path) -> Iterator[Finding]:
    """Yield problems of the state directory and its disk, without creating or changing anything in it."""
    about = "state directory"
    try:
        judge_state_dir(state_dir)
    except StateDirectoryError as exc:
        yield Finding("error", about, str(exc), "Set runtime.state_dir to a directory used only by the runtime's user.")
        return
    if not os.access(state_dir, os.F_OK):
        yield Finding("note", about, f"{state_dir} does not exist: the runtime creates it when it first starts.")
    elif not os.access(state_dir, os.R_OK | os.X_OK):
        yield Finding("error", about, f"{state_dir} cannot be read.", "Run this command as the runtime's user.")
        return
    elif stat.S_IMODE(state_dir.stat().st_mode) & _OTHERS:
        yield Finding("warning", about, f"Other users have permissions on {state_dir}.", f"chmod 700 {state_dir}")
    yield from _salt(state_dir / salt.SALT_NAME)
    manifest = Manifest(generation=0)
    try:
        manifest = read_manifest(state_dir)
    except ManifestError as exc:
        yield Finding("warning", about, f"{exc} All data will be reloaded.", "Check that the sources are reachable.")
    yield from _disk(state_dir, max((snapshot.size_bytes for snapshot in manifest.snapshots), default=0))
    for snapshot in manifest.snapshots:
        with suppress(OSError):
            if snapshot_path(state_dir, snapshot).stat().st_size == snapshot.size_bytes:
                continue
        lost = "Its data file is missing or has the wrong size: the next start will reload it."
        yield Finding("error", f"dataset {snapshot.dataset}", lost, "Restart the runtime.")
    newest = max((snapshot.created_at for snapshot in manifest.snapshots), default="")
    if newest > utc_in(_TOLERANCE_S):
        set_back = f"The newest data was loaded at {newest}, which is in the future: the clock was set back."
        yield Finding("warning", "clock", set_back, "Set the clock; key expiry depends on it.")


def _salt(file: Path) -> Iterator[Finding]:
    with suppress(FileNotFoundError):
        mode = file.lstat().st_mode
        if stat.S_ISREG(mode) and mode & _OTHERS:  # Reading it with `load` would change that.
            yield Finding("warning", "keys", f"Other users may read or change {file}.", f"chmod 600 {file}")
            return
    try:
        salt.load(file.parent)
    except SaltError as exc:
        yield Finding("error", "keys", str(exc), f"Check {file}.")


def _disk(state_dir: Path, largest: int) -> Iterator[Finding]:
    existing = next(directory for directory in (state_dir, *state_dir.parents) if directory.is_dir())
    about, room, system = "disk", Disk.of(existing).room_bytes, os.statvfs(existing)
    free = f"{size(shutil.disk_usage(existing).free)} are free"
    if system.f_flag & os.ST_RDONLY:
        yield Finding("error", about, "The disk of the state directory is read-only.", "Mount it read-write.")
    elif system.f_files and not system.f_favail:
        yield Finding("error", about, "The disk has no room for more files (inodes).", "Delete files.")
    elif room == 0:
        keeps = "Free disk space: loads keep 5 percent of the disk free, up to 1 GiB."
        yield Finding("error", about, f"{free}: no dataset can be loaded.", keeps)
    elif room < largest:
        text = f"{free}: the largest snapshot, of {size(largest)}, cannot be refreshed."
        yield Finding("warning", about, text, f"Free at least {size(largest - room)}: a refresh writes a second file.")
    else:
        yield Finding("ok", about, f"{free}.")


def addresses(config: RuntimeConfig, own: frozenset[int]) -> Iterator[Finding]:
    """Yield findings on whether the addresses in *config* can be bound. *own* are the running runtime's processes."""
    for setting, address, is_used in (
        ("runtime.http.bind", config.http.bind, True),
        ("runtime.flight.bind", config.flight.bind, config.flight.enabled),
        ("runtime.metrics.bind", config.metrics.bind, config.metrics.enabled),
    ):
        if not is_used:
            continue
        if (problem := bind_problem(address)) is not None:
            yield Finding("error", "addresses", problem, f"Set {setting} to an address that this user may use.")
        elif address.port and is_listening(address.port):
            yield _held(setting, address, frozenset(holders(address.port)), own)
        else:
            yield Finding("ok", "addresses", f"{setting}: {address} is free.")


def _held(setting: str, address: Address, found: frozenset[int], own: frozenset[int]) -> Finding:
    if found & own:
        return Finding("ok", "addresses", f"{setting}: the running runtime listens on {address}.")
    if found == {1}:
        return Finding("note", "addresses", f"{setting}: process 1 listens on {address}, as for a systemd socket unit.")
    who = f"process {min(found)}" if found else "a process that this user cannot see"
    if not found and own:
        return Finding("note", "addresses", f"{setting}: {who} has {address}.", "Run this as the runtime's user.")
    return Finding("error", "addresses", f"{setting}: {who} has {address}.", f"Stop it, or change {setting}.")


def certificate(tls: TlsConfig) -> Iterator[Finding]:
    """
    Yield findings on the certificate's dates and its key's permissions.

    The configuration check verifies that they match.
    """
    about, renew = "certificate", "Renew the certificate, then run `querykeep reload`."
    if not tls.enabled or tls.certificate_file is None or tls.key_file is None:
        return
    if stat.S_IMODE(tls.key_file.stat().st_mode) & _OTHERS:
        yield Finding("warning", about, f"Other users may read {tls.key_file}.", f"chmod 600 {tls.key_file}")
    try:
        begin, end = _dates(tls.certificate_file, tls.key_file)
    except ssl.SSLCertVerificationError as exc:
        yield Finding("error", about, f"Clients reject it even as their root: {exc.verify_message}.", renew)
        return
    now = time.time()
    if end <= now:
        yield Finding("error", about, f"It expired at {utc_at(end)}.", renew)
    elif begin > now:
        yield Finding("error", about, f"It is not valid before {utc_at(begin)}.", "Check the clock of this machine.")
    elif end <= now + WARNING_PERIOD.total_seconds():
        yield Finding("warning", about, f"It expires at {utc_at(end)}, in {duration(end - now)}.", renew)
    else:
        yield Finding("ok", about, f"It is valid until {utc_at(end)}.")


def _dates(certificate_file: Path, key_file: Path) -> tuple[float, float]:
    """Return a certificate's validity as seen by a client that trusts it as a root. The handshake is in memory."""
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    contexts[0].load_cert_chain(certificate_file, key_file, password="")  # never prompts on the terminal
    contexts[1].check_hostname = False
    contexts[1].load_verify_locations(certificate_file)
    contexts[1].verify_flags = _LENIENT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = contexts[0].wrap_bio(to_server, to_client, server_side=True)
    client = contexts[1].wrap_bio(to_client, to_server)
    for side in (client, server) * 4:  # TLS 1.3 takes two rounds
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    fields = client.getpeercert() or {}
    begin, end = (float(ssl.cert_time_to_seconds(str(fields[name]))) for name in ("notBefore", "notAfter"))
    return begin, end


def machine(config: RuntimeConfig) -> Iterator[Finding]:
    """Yield the resources that *config* needs and this machine does not provide."""
    sentences = startup.machine_warnings(config)
    for sentence in sentences:
        yield Finding("warning", "limits", sentence, "See docs/operations.md, Sizing.")
    if not sentences:
        yield Finding("ok", "limits", f"{size(memory_bytes())} of memory is enough for {config.query.workers} workers.")
    for feature in sandbox.missing():
        lacks = f"The kernel lacks {feature}: engine workers are less confined."
        yield Finding("warning", "sandbox", lacks, "Use Linux 6.2 or later with Landlock; see docs/security.md.")
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    if adjtimex is not None and adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)) == _TIME_ERROR:
        unknown = "The kernel says that its clock is not synchronised; key expiry depends on it."
        level: Level = (
            "note" if config.snapshots is None else "warning"
        )  # Object storage refuses requests if the clock is far off.
        yield Finding(
            level, "clock", unknown, "Run chrony or systemd-timesyncd, unless the host synchronizes the clock."
        )
