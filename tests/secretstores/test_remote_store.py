import threading
from collections.abc import Mapping
from typing import Any

import pytest

from runtimeconf.secret_stores import SecretError, SecretStores
from secretstores.remote_store import RemoteStore


def test_the_server_is_asked_once_whatever_it_answers() -> None:
    asked: list[str] = []

    def read() -> Mapping[str, Any]:
        asked.append("")
        raise SecretError("it is closed")

    store = RemoteStore("shop", "the shop", read)

    for _ in range(2):
        with pytest.raises(SecretError, match=r"^the shop cannot be read: it is closed$"):
            store.get("bread")
    assert len(asked) == 1


def test_a_server_that_is_silent_counts_as_down() -> None:
    ended = threading.Event()
    silent = RemoteStore("shop", "the shop", lambda: {"a": str(ended.wait(60))}, limit_s=0.05)

    try:
        with pytest.raises(
            SecretError, match=r"^secret 'a' in store shop: the shop cannot .*: no answer within 0\.05 s$"
        ):
            SecretStores([silent]).resolve("shop", "a")
    finally:
        ended.set()


def test_neither_the_store_nor_an_error_shows_a_value() -> None:
    def read() -> Mapping[str, Any]:
        raise ValueError("canary")

    full, broken = RemoteStore("shop", "it", lambda: {"a": "canary", "b": ["canary"]}), RemoteStore("shop", "it", read)

    assert full.get("a") == "canary"
    assert full.get("c") is None
    with pytest.raises(SecretError) as no_text:
        full.get("b")
    with pytest.raises(SecretError) as failed:
        broken.get("a")
    assert "canary" not in f"{full!r} {no_text.value} {failed.value}"
