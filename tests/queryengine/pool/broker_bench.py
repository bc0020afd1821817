"""A broker and its clients in one thread, for tests that write the messages themselves."""

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from queryengine.pool import slot_scheduler
from queryengine.pool.broker import Broker
from queryengine.pool.frames import FrameDecoder, Kind, encode
from runtimeconf.model import QueryConfig


class Bench:
    """A broker and clients of its socket, all in one thread."""

    def __init__(self, path: Path, **settings: Any) -> None:
        several_keys, processors = settings.pop("several_keys", True), settings.pop("processors", 8)
        reserved = settings.pop("reserved", 0)
        limits = QueryConfig(**{"workers": 2, "max_queued": 4, "queue_timeout_s": 60.0, **settings})
        self.path, self.killed = path, list[str]()
        with patch.object(slot_scheduler, "PROCESSORS", processors):
            self.broker = Broker(path, limits, several_keys=several_keys, kill=self.killed.append, reserved=reserved)
        self.broker.report_s = 0.0  # These clients report nothing by themselves.
        self._clients = ExitStack()

    def client(self) -> "Client":
        return Client(self, self._clients.enter_context(socket.socket(socket.AF_UNIX)))

    def turn(self) -> None:
        """Let the broker do all that is due."""
        for _ in range(4):
            self.broker.poll(0)

    def close(self) -> None:
        self._clients.close()
        self.broker.close()


class Client:
    def __init__(self, bench: Bench, connection: socket.socket) -> None:
        self.socket = connection
        self.slots: dict[str, int] = {}  # by the statement for which it was granted
        self._called: set[int] = set()
        self._bench = bench
        self._decoder = FrameDecoder()
        connection.connect(str(bench.path))
        connection.setblocking(False)
        self.greeting = self.everything()

    def say(self, **fields: Any) -> list[dict[str, Any]]:
        """Send a message and return what the broker sends."""
        return self.send(encode(Kind.MESSAGE, fields))

    def send(self, data: bytes) -> list[dict[str, Any]]:
        self.socket.sendall(data)
        return self.heard()

    def enter(self, query_id: str, key: str = "k", **more: Any) -> list[dict[str, Any]]:
        patient = more.pop("patient", False)
        statement = {"id": query_id, "sql": f"SELECT '{query_id}'", "started": "2026-01-01T00:00:00Z", **more}
        return self.say(do="enter", key=key, patient=patient, statement=statement)

    def leave(self, query_id: str, *, kill: bool = False) -> list[dict[str, Any]]:
        """Give back the slot of a statement, or end its wait."""
        if query_id not in self.slots:
            return self.say(do="leave", id=query_id)
        return self.say(do="leave", slot=self.slots.pop(query_id), **({"kill": query_id} if kill else {}))

    def heard(self) -> list[dict[str, Any]]:
        """Return new messages except statuses, recalls and requests for reports."""
        messages = [message for message in self.everything() if message["is"] not in ("status", "recall", "report")]
        for message in messages:
            if message["is"] == "admitted":
                self.slots[message["id"]] = message.pop("slot")
                del message["key"]
        return messages

    def recalled(self) -> set[str]:
        """Return the statements whose slots were recalled since the last call."""
        self.everything()
        numbers, self._called = self._called, set()
        return {query_id for query_id, number in self.slots.items() if number in numbers}

    def everything(self) -> list[dict[str, Any]]:
        self._bench.turn()
        messages = []
        while data := self._received():
            messages += [json.loads(payload) for _, payload in self._decoder.feed(data)]
        self._called |= {message["slot"] for message in messages if message["is"] == "recall"}
        return messages

    def _received(self) -> bytes | None:
        """Return what has come; nothing at the end of the connection, None before that."""
        try:
            return self.socket.recv(65536)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return b""

    def is_dropped(self) -> bool:
        self._bench.turn()
        while data := self._received():
            pass
        return data is not None


MakeBench = Callable[..., Bench]


def admitted(query_id: str) -> dict[str, Any]:
    return {"is": "admitted", "id": query_id}


def busy(query_id: str) -> dict[str, Any]:
    return {"is": "busy", "id": query_id, "retry_after_s": 1}


def runs(client: Client, slot: int, query_id: str = "") -> list[dict[str, Any]]:
    statement = {"id": query_id, "sql": "SELECT 2", "started": "2026-01-01T00:00:02Z"} if query_id else None
    return client.say(do="runs", slot=slot, statement=statement)


def listed(client: Client, key: str = "k") -> list[tuple[str, str]]:
    (answer,) = client.say(do="active", ask=1, key=key)
    return [(one["query_id"], one["state"]) for one in answer["statements"]]
