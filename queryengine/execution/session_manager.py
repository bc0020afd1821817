"""
Which session is in use: always one that gives what the newest manifest says.

A statement leases the current session and keeps it to its end, whatever is published meanwhile, so it sees one
generation only. A manifest is noticed by the first lease after its publication, or by a thread that looks four times
a second. To open a session takes a millisecond for each dataset, so it is not done for each publication: a statement
waits for it only when what it reads has been published anew, and the thread takes a small part of the time for it, or
does it soon where a file is to be freed. The new session is open before it takes the old one's place, and the old one
is closed, which frees its files, when the last statement on it has ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from queryengine.engine import GatedStatement
from queryengine.errors import EngineUnavailableError
from queryengine.execution.session import EngineInstance, SnapshotGoneError, UnfitView
from queryengine.manifest import Manifest, ManifestError, Pin, Signature, manifest_path, read_manifest, signature

logger = logging.getLogger(__name__)

#: How often the manifest is looked at when nobody asks.
POLL_S = 0.25

#: A session that nobody waits for is opened so many times as long as that took after the one before, but no later than
#: so many seconds if a file is to be freed by it. Whether one is, is found out once in that time. At worst a file is
#: superseded just when a session has opened it: this one's opening, this rest, a look and the next opening take two
#: seconds then, if each opening takes half a second.
REST_PARTS = 10
REST_S = 0.75


class _Held:
    """A session over a manifest, with the number of statements on it."""

    def __init__(self, session: EngineInstance, pin: Pin) -> None:
        self.session = session
        self.pin = pin
        self.leases = 0

    def close(self) -> None:
        """Free what the session reads."""
        self.session.close()
        self.pin.close()


class _Published:
    """The newest manifest, of which no session was opened: its snapshots by the name of their dataset in lower case."""

    def __init__(self, pin: Pin, manifest: Manifest) -> None:
        self.pin = pin
        self.snapshots = {snapshot.dataset.lower(): snapshot for snapshot in manifest.snapshots}


class Lease:
    """
    The use of one session. It is given back by `release`, always.

    `basis` is the manifest that the session answers for, or one before it; None when that cannot be told for sure.
    """

    def __init__(self, generations: Generations, held: _Held, pin: Pin) -> None:
        self.session = held.session
        self.basis: Signature = pin.signature if pin.is_held else None
        self._generations = generations
        self._held: _Held | None = held

    def release(self) -> None:
        """Give the session back. More than one call is harmless, from one thread."""
        held, self._held = self._held, None
        if held is not None:
            self._generations._release(held)  # noqa: SLF001 - the other half of this class


class Generations:
    """
    The sessions over what *state_dir* publishes.

    *open_session* makes one of a manifest; it raises SnapshotGoneError, unless its second argument tells it to do
    without what is gone.
    """

    def __init__(self, state_dir: Path, open_session: Callable[[Manifest, bool], EngineInstance]) -> None:
        """
        Open the first session.

        Raises:
            EngineUnavailableError: The engine cannot start.
        """
        self._state_dir = state_dir
        self._manifest = str(manifest_path(state_dir))
        self._open_session = open_session
        self._opening = threading.Lock()  # Taken before the other one, by who opens a session.
        self._unfit_views: dict[str, UnfitView] = {}  # of the newest session
        self._unusable: Signature = None  # of the manifest that was complained about last
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._retired: list[_Held] = []
        self._published: _Published | None = None
        self._rests_until = self._looks_at = 0.0
        self._current = self._first()
        self._thread = threading.Thread(target=self._follow, name="engine-generations", daemon=True)
        self._thread.start()

    def lease(self, statement: GatedStatement | None = None) -> Lease:
        """
        Lease a session over what is published now, or one that answers *statement* as that does.

        Raises:
            EngineUnavailableError: This is closed, or the engine cannot start.
        """
        with self._lock:
            if (pin := self._fitting(statement)) is not None:
                return self._leased(pin)
        with self._opening:
            self._renew()
            with self._lock:
                return self._leased(self._current.pin)

    def close(self, timeout_s: float) -> None:
        """Close every session as soon as nobody uses it, and wait *timeout_s* seconds at most for that."""
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
            raise _stopping()
        self._current.leases += 1
        return Lease(self, self._current, pin)

    def _fitting(self, statement: GatedStatement | None) -> Pin | None:
        """Return the newest manifest when the current session answers *statement* for it. Called under the lock."""
        if self._closed:
            raise _stopping()
        session, signature_now = self._current.session, self._signature()
        if session.broken:
            return None
        if self._current.pin.signature == signature_now:
            return self._current.pin
        if statement is None:
            return None
        published = self._newest(signature_now)
        if published is None or not session.finds_the_same(statement, published.snapshots):
            return None
        return published.pin

    def _newest(self, signature_now: Signature) -> _Published | None:
        """Return what is published now, None when that cannot be read. Called under the lock."""
        if self._published is None or self._published.pin.signature != signature_now:
            self._forget_published()
            pin = Pin(self._manifest)  # Before it is read: see `_open`.
            try:
                self._published = _Published(pin, read_manifest(self._state_dir))
            except ManifestError:
                pin.close()
            except BaseException:
                pin.close()
                raise
        return self._published

    def _forget_published(self) -> None:
        if self._published is not None:
            self._published.pin.close()
            self._published = None

    def _renew(self) -> None:
        """
        Replace the current session when there is a newer manifest, or it is broken. Called by who may open one.

        Statements that need no newer session get the current one meanwhile.
        """
        current = self._current
        # One that is gone was lost: whoever published it writes it again.
        if self._signature() in {current.pin.signature, None} and not current.session.broken:
            return
        try:
            successor = self._open()
        except ManifestError as exc:
            if current.session.broken:
                raise EngineUnavailableError(str(exc)) from exc
            # The refresher rebuilds what it finds unusable, and a want of descriptors passes; until then the data of
            # before is still good.
            if (published := self._signature()) != self._unusable:
                self._unusable = published
                logger.warning("manifest unusable", extra={"fields": {"error": str(exc)}})
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
        """Renew without anybody waiting for it, unless somebody does that just now."""
        try:
            if self._closed or self._may_rest(time.monotonic()) or not self._opening.acquire(blocking=False):
                return
            try:
                self._renew()
            finally:
                self._opening.release()
        except EngineUnavailableError:
            return
        except MemoryError:  # A statement has it all: this is tried again.
            logger.warning("the newest generation cannot be opened", extra={"fields": {"error": "too little memory"}})
        except Exception:  # Whoever asks for a session is told; this thread goes on closing what nobody uses.
            logger.exception("the newest generation cannot be opened")

    def _may_rest(self, now: float) -> bool:
        """Say whether to open no session yet: for a file that is no longer published there is less time than else."""
        if now >= self._rests_until:
            return False
        if now < self._looks_at:
            return True
        self._looks_at = now + REST_S
        with self._lock:
            if self._closed or self._current.pin.signature == (signature_now := self._signature()):
                return True
            published = self._newest(signature_now)
            return published is not None and not self._current.session.holds_superseded(published.snapshots)

    def _signature(self) -> Signature:
        return signature(self._manifest)

    def _first(self) -> _Held:
        try:
            return self._open()
        except ManifestError as exc:
            logger.warning("manifest unusable", extra={"fields": {"error": str(exc)}})
            return _Held(self._open_session(Manifest(generation=0), True), Pin(self._manifest))

    def _open(self) -> _Held:
        """
        Open a session over what is published now, and take note of how long that takes.

        Raises:
            ManifestError: The manifest is damaged or of another release.
        """
        began = time.monotonic()
        try:
            return self._opened()
        finally:
            ended = time.monotonic()
            self._rests_until, self._looks_at = ended + REST_PARTS * (ended - began), ended + REST_S

    def _opened(self) -> _Held:
        failed: Signature = None
        while True:
            with ExitStack() as undo:
                # Before it is read: should another take its place meanwhile, that one is noticed.
                pin = Pin(self._manifest)
                undo.callback(pin.close)
                manifest = read_manifest(self._state_dir)
                try:
                    # What the same manifest names and is still not there was lost, not superseded: serve the others.
                    session = self._open_session(manifest, pin.signature == failed)
                except SnapshotGoneError:
                    failed = pin.signature
                    continue
                undo.pop_all()
            fields = {"generation": manifest.generation, "snapshots": len(manifest.snapshots)}
            logger.info("generation opened", extra={"fields": fields})
            self._tell_of_views(session)
            return _Held(session, pin)

    def _tell_of_views(self, session: EngineInstance) -> None:
        """Log what has come to fit the data no longer, or for another reason than before."""
        for name, unfit in session.unfit_views.items():
            if self._unfit_views.get(name) != unfit:
                fields = {"view": name, "yaml_path": unfit.yaml_path, "error": unfit.reason}
                logger.warning("view unusable", extra={"fields": fields})
        self._unfit_views = session.unfit_views

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


def _stopping() -> EngineUnavailableError:
    return EngineUnavailableError("The runtime is stopping.")
