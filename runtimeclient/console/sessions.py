"""Who may use the page: links that work once, the sessions that they open, and the time without any."""

import hashlib
import secrets
import threading
import time

#: Enough for anybody's tabs; a link opens one session, and tabs of one browser share theirs.
_MOST = 64
_LINK_LIFETIME_S = 600.0


def _digest(secret: str) -> bytes:
    """Return a digest to look up: neither the time of the search nor a dump shows the secret."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


class Sessions:
    """The links that wait to be opened, and the open sessions. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[bytes, float] = {}  # when each was made
        self._sessions: dict[bytes, float] = {}  # when each was opened
        self._used_at = time.monotonic()

    def make_token(self) -> str:
        """Return the token of a link, which opens one session within ten minutes."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._links[_digest(token)] = time.monotonic()
            _drop_oldest(self._links)
        return token

    def open(self, token: str) -> str | None:
        """Open a session with a token, which is used up; None if it is unknown, too old, or used before."""
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
        """Return whether *session* is open, which counts as a use."""
        with self._lock:
            if session is None or _digest(session) not in self._sessions:
                return False
            self._used_at = time.monotonic()
            return True

    def idle_s(self) -> float:
        """Return the seconds since a session was last used; an open page uses its session every minute."""
        with self._lock:
            return time.monotonic() - self._used_at


def _drop_oldest(items: dict[bytes, float]) -> None:
    while len(items) > _MOST:
        del items[next(iter(items))]
