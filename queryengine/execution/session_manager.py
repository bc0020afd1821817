"""
The session manager, which keeps a session open for the newest manifest.

A statement leases the current session until the statement ends, even if newer data is published in the meantime, so it
sees only one version of the data. A new manifest is noticed by the first lease after its publication, or by a thread
that checks four times a second. Opening a session takes a millisecond per dataset, so a session is not opened for every
publication. A statement waits for a new session only if a dataset that it reads has been published again. The thread
spends only a small part of its time opening sessions, but opens one soon if that frees a superseded file. The new
session is open before it replaces the old one. The old session is closed, which frees its files, when its last
statement has ended.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from queryengine.engine import GatedStatement
from queryengine.errors import EngineUnavailableError
from queryengine.execution.definitions import SnapshotGoneError
from queryengine.execution.session import Session, UnfitView
from queryengine.manifest import Manifest, ManifestError, Pin, Signature, manifest_path, read_declared, signature
from runtimeconf.model import DatasetConfig

logger = logging.getLogger(__name__)

_STOPPING = "The runtime is stopping."

#: Seconds between two checks of the manifest by the thread.
POLL_S = 0.25

#: After opening a session, the thread rests for this multiple of the opening time. If a new session would free a
#: superseded file, which the thread checks every `REST_S` seconds, it rests no longer than `REST_S`. In the worst case,
#: a file is superseded just after a session opened it. If opening a session takes 0.5 s, then this opening, the rest,
#: one check and the next opening take two seconds.
REST_PARTS = 10
REST_S = 0.75


class EngineReplacedError(Exception):
    """Another engine has replaced this one, and runs the statements that need newer data. Callers never see this."""


class _Held(Struct, eq=False):
    """
    A session over a manifest, and the number of statements that use the session.

    If it is not `is_whole`, the manifest has data of another configuration in place of ours.
    """

    session: Session
    pin: Pin
    files: Mapping[str, str] = field(default_factory=dict)  # by lower-case dataset name
    is_whole: bool = True
    leases: int = 0

    def has(self, files: Mapping[str, str]) -> bool:
        """Return whether the session has everything that a session over *files*, which are not whole, would have."""
        return self.is_whole or self.files == files

    def close(self) -> None:
        """Close the session's files."""
        self.session.close()
        self.pin.close()


class _Published(Struct, frozen=True):
    """The newest manifest, with its files by lower-case dataset name. See `_Held` for `is_whole`."""

    pin: Pin
    files: Mapping[str, str]
    is_whole: bool


class Lease(Struct, eq=False):
    """
    The use of one session. Its holder must call `release` once.

    `data_version` is the manifest that the session's results reflect, or an earlier one; None if that is uncertain.
    """

    session: Session
    data_version: Signature
    release: Callable[[], None]


class SessionManager:
    """
    The sessions over the data published in *state_dir*.

    *open_session* opens a session over a manifest. It raises SnapshotGoneError for a missing snapshot, unless its
    second argument tells it to leave out missing snapshots. Data that *datasets* do not declare is left out: see
    `read_declared`. A session with all of ours is kept while the manifest is for another configuration.

    Once the file *replaced* exists, another engine runs new statements, and what is published from then on is not for
    the keys of this one. A statement that has begun before can only have the current session.
    """

    def __init__(
        self,
        state_dir: Path,
        open_session: Callable[[Manifest, bool], Session],
        datasets: Sequence[DatasetConfig] = (),
        replaced: Path | None = None,
    ) -> None:
        """
        Open the first session.

        Raises:
            EngineReplacedError: The engine has been replaced.
            EngineUnavailableError: The engine cannot start.
        """
        self._state_dir = state_dir
        self._manifest = str(manifest_path(state_dir))
        self._open_session = open_session
        self._datasets = datasets
        self._replaced = replaced
        self._opening = threading.Lock()  # Held while a session is opened. Acquired before the other lock.
        self._unfit_views: Mapping[str, UnfitView] = {}  # of the newest session
        self._unusable: Signature = None  # of the manifest that the log last reported
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._retired: list[_Held] = []
        self._published: _Published | None = None  # if no session is open for it
        self._rests_until = self._looks_at = 0.0
        try:
            self._current = self._open()
        except ManifestError as exc:
            logger.warning("manifest unusable", extra={"fields": {"error": str(exc)}})
            self._current = _Held(open_session(Manifest(generation=0), True), Pin(self._manifest))
        self._thread = threading.Thread(target=self._follow, name="engine-sessions", daemon=True)
        self._thread.start()

    def lease(self, statement: GatedStatement | None = None) -> Lease:
        """
        Lease a session over the published data, or a session that returns the same result for *statement*.

        Raises:
            EngineReplacedError: The engine has been replaced, and the current session lacks newer data.
            EngineUnavailableError: The manager is closed, or the engine cannot start.
        """
        with self._lock:
            if (pin := self._fitting(statement)) is not None:
                return self._leased(pin)
        with self._opening:
            self._renew()
            with self._lock:
                return self._leased(self._current.pin)

    @property
    def is_ready(self) -> bool:
        """Whether the current session accepts statements now."""
        return self._current.session.is_ready

    def close(self, timeout_s: float) -> None:
        """Close every session as soon as it has no leases. Wait at most *timeout_s* seconds."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._retired.append(self._current)
                self._forget_published()
        self._wake.set()
        self._thread.join(timeout_s)

    def _release(self, held: _Held) -> None:
        with self._lock:
            held.leases -= 1
            if not held.leases and held in self._retired:
                self._wake.set()

    def _leased(self, pin: Pin) -> Lease:
        if self._closed:
            raise EngineUnavailableError(_STOPPING)
        held = self._current
        held.leases += 1
        return Lease(held.session, pin.signature if pin.is_held else None, partial(self._release, held))

    def _fitting(self, statement: GatedStatement | None) -> Pin | None:
        """Return the newest manifest if the current session can run *statement* on it. Call with the lock held."""
        if self._closed:
            raise EngineUnavailableError(_STOPPING)
        current, signature_now = self._current, signature(self._manifest)
        if current.session.is_broken:
            return None
        if current.is_whole and current.pin.signature == signature_now:
            return current.pin
        if statement is None or (published := self._newest(signature_now)) is None:
            return None
        if current.is_whole and not published.is_whole:
            return current.pin
        return published.pin if current.session.reads_the_same(statement, published.files) else None

    def _newest(self, signature_now: Signature) -> _Published | None:
        """Return the published manifest; None if it cannot be read. Call with the lock held."""
        known = self._published
        if known is None or known.pin.signature != signature_now or not known.is_whole:
            self._forget_published()
            with suppress(ManifestError), ExitStack() as undo:
                pin = Pin(self._manifest)  # before it is read: see `_open`
                undo.callback(pin.close)
                manifest, is_whole = read_declared(self._state_dir, self._datasets)
                self._published = _Published(pin, _files_of(manifest), is_whole)
                undo.pop_all()
        return self._published

    def _forget_published(self) -> None:
        if self._published is not None:
            self._published.pin.close()
            self._published = None

    def _renew(self) -> None:
        """
        Replace the current session if it is broken or a newer manifest exists. Call with `_opening` held.

        In the meantime, statements that do not need a newer session get the current one.
        """
        current = self._current
        # If the manifest is missing, the refresher writes it again.
        is_newest = signature(self._manifest) in {current.pin.signature, None}
        if is_newest and current.is_whole and not current.session.is_broken:
            return
        try:
            successor = self._open(current)
        except ManifestError as exc:
            if current.session.is_broken:
                raise EngineUnavailableError(str(exc)) from exc
            # The refresher rebuilds an unusable manifest, and a shortage of file descriptors is temporary. Until then,
            # the old data can be used.
            if (published := signature(self._manifest)) != self._unusable:
                self._unusable = published
                logger.warning("manifest unusable", extra={"fields": {"error": str(exc)}})
            return
        if successor is current:
            return
        with self._lock:
            if not self._closed:
                self._retired.append(current)
                self._current = successor
                self._forget_published()
                self._wake.set()
                return
        successor.close()

    def _renew_if_possible(self) -> None:
        """Renew in the background, unless a lease is already doing so."""
        try:
            if self._closed or self._may_rest(time.monotonic()) or not self._opening.acquire(blocking=False):
                return
            try:
                self._renew()
            finally:
                self._opening.release()
        except (EngineUnavailableError, EngineReplacedError):
            return
        except MemoryError:  # A statement is using all the memory, so try again later.
            logger.warning("the newest generation cannot be opened", extra={"fields": {"error": "too little memory"}})
        except Exception:  # The next lease reports the error. This thread must continue to close unused sessions.
            logger.exception("the newest generation cannot be opened")

    def _may_rest(self, now: float) -> bool:
        """Return whether to wait before opening a session. The rest is shorter if a session holds a superseded file."""
        if now >= self._rests_until:
            return False
        if now < self._looks_at:
            return True
        self._looks_at = now + REST_S
        with self._lock:
            if self._closed or self._current.pin.signature == (signature_now := signature(self._manifest)):
                return True
            published = self._newest(signature_now)
            return published is not None and not self._current.session.holds_superseded(published.files)

    def _open(self, current: _Held | None = None) -> _Held:
        """
        Open a session over the published data, and set the rest period of the thread.

        Return *current* if the manifest is for another configuration and has no data of ours that *current* lacks.

        Raises:
            ManifestError: The manifest is damaged or from another release.
            EngineReplacedError: The engine has been replaced.
            EngineUnavailableError: The engine cannot start.
        """
        began = time.monotonic()
        failed: Signature = None
        session = None
        try:
            while session is None:
                with ExitStack() as undo, suppress(SnapshotGoneError):
                    # Pin before reading, so that a manifest that replaces this one in the meantime is noticed.
                    pin = Pin(self._manifest)
                    undo.callback(pin.close)
                    manifest, is_whole = read_declared(self._state_dir, self._datasets)
                    # Asked after reading: without the file, this was published before the engine was replaced.
                    if self._replaced is not None and self._replaced.exists():
                        raise EngineReplacedError
                    files = _files_of(manifest)
                    if current and not is_whole and not current.session.is_broken and current.has(files):
                        return current
                    # If the same manifest fails twice, its snapshot was lost, not superseded, so serve the others.
                    tolerant, failed = pin.signature == failed, pin.signature
                    session = self._open_session(manifest, tolerant)
                    undo.pop_all()
        finally:
            ended = time.monotonic()
            self._rests_until, self._looks_at = ended + REST_PARTS * (ended - began), ended + REST_S
        fields: dict[str, object] = {"generation": manifest.generation, "snapshots": len(manifest.snapshots)}
        logger.info("generation opened", extra={"fields": fields})
        for name, unfit in session.unfit_views.items():
            if self._unfit_views.get(name) != unfit:  # The view no longer fits, or the reason has changed.
                unusable = {"view": name, "yaml_path": unfit.yaml_path, "error": unfit.reason}
                logger.warning("view unusable", extra={"fields": unusable})
        self._unfit_views = session.unfit_views
        return _Held(session, pin, files, is_whole)

    def _follow(self) -> None:
        while True:
            self._wake.wait(POLL_S)
            self._wake.clear()
            self._renew_if_possible()
            with self._lock:
                idle = [held for held in self._retired if not held.leases]
                self._retired = [held for held in self._retired if held.leases]
                done = self._closed and not self._retired
            for held in idle:
                held.close()
            if done:
                return


def _files_of(manifest: Manifest) -> dict[str, str]:
    return {snapshot.dataset.lower(): snapshot.file for snapshot in manifest.snapshots}
