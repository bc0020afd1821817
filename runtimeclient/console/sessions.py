"""Access to the page: links that work once, the sessions that they open, and the time since the last use."""

import hashlib
import secrets
import threading
import time

#: The maximum number of links and of sessions. A link opens one session, which the tabs of one browser share.
_MOST = 64
_LINK_LIFETIME_S = 600.0


def _digest(secret: str) -> bytes:
    """Return the digest under which a secret is stored, so that neither timing nor a memory dump reveals the secret."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


class Sessions:
    """The unused links and the open sessions. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[bytes, float] = {}  # when each link was created
        self._sessions: dict[bytes, float] = {}  # when each session was opened
        self._used_at = time.monotonic()

    def make_token(self) -> str:
        """Return the token of a link, which opens one session within ten minutes."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._links[_digest(token)] = time.monotonic()
            _drop_oldest(self._links)
        return token

    def open(self, token: str) -> str | None:
        """Exchange a token for a session. Return None if the token is unknown, expired or already used."""
        with self._lock:
            made_at = self._links.pop(_digest(token), None)
            if made_at is None or time.monotonic() - made_at > _LINK_LIFETIME_S:
                return None
            session = secrets.token_urlsafe(32)
            self._sessions[_digest(session)] = time.monotonic()
            _drop_oldest(self._sessions)
            self._used_at = time.monotonic()
            return session

    def is_open(self, session: str | None) -> bool:
        """Return True if *session* is open. This call counts as a use."""
        with self._lock:
            if session is None or _digest(session) not in self._sessions:
                return False
            self._used_at = time.monotonic()
            return True

    def idle_s(self) -> float:
        """Return the seconds since a session was last used. An open page uses its session every minute."""
        with self._lock:
            return time.monotonic() - self._used_at


def _drop_oldest(items: dict[bytes, float]) -> None:
    while len(items) > _MOST:
        del items[next(iter(items))]
