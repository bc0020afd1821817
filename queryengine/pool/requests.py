"""What a client asks of an engine worker: the fields of a REQUEST frame, checked."""

import time
from base64 import b64decode
from dataclasses import dataclass
from typing import Any, Literal, get_args

from queryengine.encoders import ENCODERS
from queryengine.engine import ArrowParameters, Parameters, Query
from queryengine.pool.frames import FrameError

RequestKind = Literal["run", "describe", "admit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """
    A checked request; `relations` belong to "admit", `speculate_s` to "describe"; `deadline` is on the monotonic clock.

    With `wants_data_version`, the header of the answer names the manifest whose data alone decides it, if there is one.
    """

    kind: RequestKind
    query: Query
    relations: frozenset[str]
    deadline: float
    speculate_s: float
    wants_data_version: bool

    @property
    def log_fields(self) -> dict[str, str]:
        """The fields by which the log names the statement and its owner."""
        return {"query_id": self.query.query_id, "fingerprint": self.query.fingerprint}


def checked_request(fields: dict[str, Any], limit_s: float) -> Request:
    """
    Check the *fields* of a request, which may take at most *limit_s* seconds.

    Raises:
        FrameError: They are not a request.
    """
    try:
        kind, encoding = fields["call"], fields.get("encoding", "json")
        if kind not in get_args(RequestKind) or encoding not in ENCODERS or not isinstance(fields["sql"], str):
            raise FrameError("a request is not well-formed")
        parameters: Parameters | None = fields.get("parameters")
        if "arrow_parameters" in fields:
            parameters = ArrowParameters(b64decode(fields["arrow_parameters"], validate=True))
        left_s = min(float(fields["timeout_s"]), limit_s)
        query = Query(
            sql=fields["sql"],
            encoding=encoding,
            parameters=parameters,
            query_id=str(fields["query_id"]),
            fingerprint=str(fields.get("fingerprint", "")),
            timeout_s=left_s,
        )
        return Request(
            kind=kind,
            query=query,
            relations=frozenset(map(str, fields.get("relations", ()))),
            deadline=time.monotonic() + left_s,
            speculate_s=float(fields.get("speculate_s", 0.0)),
            wants_data_version="data_version" in fields,
        )
    except (KeyError, TypeError, ValueError):
        raise FrameError("a request is not well-formed") from None
