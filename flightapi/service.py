"""The RPCs of Arrow Flight: what is asked for is read by `commands` and `actions`, done here, and written by them."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
import pyarrow as pa

from authkeys.principal import ANONYMOUS
from flightapi import actions, commands, metadata
from flightapi.ahead import AnswersAhead, Asked
from flightapi.authentication import Accepted, CallDetails, Judge, Undecided
from flightapi.calls import HANDSHAKE_IDLE_S, IDLE_S, SEND_GRACE_S, Call, IdleClock, many_answers, one_answer
from flightapi.commands import PreparedExecution, Statement
from flightapi.descriptions import Descriptions
from flightapi.errors import UnsupportedError
from flightapi.handshake import Handshake
from flightapi.prepared import IDLE_S as PREPARED_IDLE_S
from flightapi.prepared import Prepared, PreparedStatements
from flightapi.protocol import framing, schemas, uploads
from flightapi.protocol.messages import METHODS
from flightapi.statements import Statements
from queryengine.engine import ArrowParameters, Parameters, QueryEngine
from queryengine.errors import EngineUnavailableError, StatementError
from runtimeconf.model import RuntimeConfig

#: What GetSqlInfo says; a test compares it with that of the project.
VERSION = "0.1.0"

_UNSUPPORTED = {
    "PollFlightInfo": "PollFlightInfo is not supported: use GetFlightInfo.",
    "ListFlights": "ListFlights is not supported: use the Flight SQL command GetTables.",
    "DoExchange": "DoExchange is not supported.",
}

_NO_METHOD = "There is no such method."


class FlightService(grpc.GenericRpcHandler):  # type: ignore[misc]
    """
    Answers accepted calls.

    Args:
        config: Says what there is to read, and how much a message may hold.
        engine: What runs statements.
        judge: What decides about the keys of handshakes.
        clock: Of all calls.
    """

    def __init__(self, config: RuntimeConfig, engine: QueryEngine, judge: Judge, clock: IdleClock) -> None:
        self._statements = Statements(engine)
        self._descriptions = Descriptions(config.state_dir)
        self._ahead = AnswersAhead(config.state_dir)
        clock.each_tick(self._ahead.expire)
        self._prepared = PreparedStatements()
        self._handshake = Handshake(judge)
        self._relations = (
            *(metadata.Relation(dataset.name, "TABLE") for dataset in config.datasets),
            *(metadata.Relation(view.name, "VIEW") for view in config.views),
        )
        self._max_bytes = config.flight.max_message_bytes
        self._facts = metadata.ServerFacts(
            version=VERSION, handle_timeout_ms=round(PREPARED_IDLE_S * 1000), max_statement_bytes=self._max_bytes
        )
        self._clock = clock
        send_s = config.query.timeout_s + SEND_GRACE_S
        one: dict[str, Callable[[Call], bytes]] = {
            "GetFlightInfo": self._get_flight_info,
            "GetSchema": self._get_schema,
        }
        many: dict[str, Callable[[Call], Iterator[bytes]]] = {
            "DoGet": self._do_get,
            "DoPut": self._do_put,
            "DoAction": self._do_action,
            "ListActions": self._list_actions,
        }
        self._handlers: dict[str, Callable[[Any], Any]] = {
            **{METHODS[name].path: partial(one_answer, act) for name, act in one.items()},
            **{METHODS[name].path: partial(many_answers, act, send_s=send_s) for name, act in many.items()},
            **{METHODS[name].path: partial(one_answer, partial(_refuse, text)) for name, text in _UNSUPPORTED.items()},
        }

    def service(self, details: CallDetails) -> Any:
        """Return the handler of a call that was let through."""
        verdict = details.verdict
        if details.method == METHODS["Handshake"].path:
            answer = partial(self._handshake.answer, verdict=verdict)
            return many_answers(answer, self._begin(verdict, HANDSHAKE_IDLE_S), HANDSHAKE_IDLE_S)
        if not isinstance(verdict, Accepted):
            raise TypeError("A call that nobody decided about.")
        handler = self._handlers.get(details.method, partial(one_answer, partial(_refuse, _NO_METHOD)))
        return handler(self._begin(verdict, IDLE_S))

    def _begin(self, verdict: Accepted | Undecided, idle_s: float) -> Callable[[Iterator[bytes], Any], Call]:
        principal = verdict.principal if isinstance(verdict, Accepted) else ANONYMOUS
        return partial(Call, principal, clock=self._clock, idle_s=idle_s)

    # One answer.

    def _get_flight_info(self, call: Call) -> bytes:
        descriptor = call.message()
        ticket_id = secrets.token_bytes(commands.TICKET_ID_BYTES)
        schema, plan = self._schema_of(call, commands.plan_descriptor(descriptor), ticket_id)
        return commands.flight_info(descriptor, schema, commands.ticket(plan, ticket_id))

    def _get_schema(self, call: Call) -> bytes:
        schema, _ = self._schema_of(call, commands.plan_descriptor(call.message()))
        return commands.schema_result(schema)

    def _schema_of(
        self, call: Call, plan: commands.Plan, ticket_id: bytes | None = None
    ) -> tuple[bytes, commands.Plan]:
        """
        Return the schema of what *plan* will answer, and the plan for its ticket.

        With *ticket_id*, which that ticket will have, the answer itself may be found as well, and waits for its call.
        """
        if isinstance(plan, Statement):
            return self._described(call, plan.sql, None, ticket_id), plan
        if isinstance(plan, PreparedExecution):
            prepared = self._prepared.get(call.principal.fingerprint, plan.handle)
            schema = self._described(call, prepared.sql, prepared.parameters, ticket_id)
            if prepared.takes_parameters or prepared.parameters is not None:
                return schema, plan
            # Such a ticket needs nothing that is kept here.
            return schema, Statement(prepared.sql)
        return schemas.encapsulated(metadata.answer_schema(plan)), plan

    def _described(self, call: Call, sql: str, parameters: ArrowParameters | None, ticket_id: bytes | None) -> bytes:
        """Return the schema of *sql* with *parameters*."""
        given: Parameters = () if parameters is None else parameters
        ahead_s = 0.0 if ticket_id is None else self._ahead.limit_s(sql)
        describe = partial(self._statements.describe, call, sql, given, ahead_s)
        if ticket_id is None or not ahead_s:
            found = describe() if parameters is not None else self._descriptions.of(sql, describe)
            return found.schema or b""
        published = self._ahead.published()
        found = describe()
        if found.answer is None:
            self._ahead.was_in_vain(sql)
        else:
            asked = Asked(call.principal.fingerprint, ticket_id, sql, parameters)
            self._ahead.keep(asked, found.answer, published)
        return found.schema or b""

    # Any number of answers.

    def _do_get(self, call: Call) -> Iterator[bytes]:
        plan = commands.plan_ticket(call.message())
        if isinstance(plan, Statement):
            return self._run(call, plan.sql, None, plan.ticket_id)
        if isinstance(plan, PreparedExecution):
            prepared = self._prepared.get(call.principal.fingerprint, plan.handle)
            return self._run(call, prepared.sql, prepared.parameters, plan.ticket_id)
        table = metadata.answer(plan, self._relations, partial(self._table_schemas, call), self._facts)
        return framing.table_data(table)

    def _run(
        self, call: Call, sql: str, parameters: ArrowParameters | None, ticket_id: bytes | None
    ) -> Iterator[bytes]:
        fingerprint = call.principal.fingerprint
        answer = None if ticket_id is None else self._ahead.take(Asked(fingerprint, ticket_id, sql, parameters))
        return self._statements.run(call, sql, () if parameters is None else parameters, ticket_id, answer)

    def _do_put(self, call: Call) -> Iterator[bytes]:
        incoming = call.messages()
        first = next(incoming, b"")
        plan = commands.plan_put(first)
        fingerprint = call.principal.fingerprint
        self._prepared.get(fingerprint, plan.handle)  # before anything more is read
        row = uploads.read_row(itertools.chain([first], incoming), self._max_bytes)
        self._prepared.bind(fingerprint, plan.handle, ArrowParameters(_stream(row)) if row.num_rows else None)
        yield commands.bind_result(plan.handle)

    def _do_action(self, call: Call) -> Iterator[bytes]:
        plan = actions.plan_action(call.message())
        match plan:
            case actions.CreatePrepared():
                yield self._prepare(call, plan.sql)
            case actions.ClosePrepared():
                self._prepared.close(call.principal.fingerprint, plan.handle)
            case actions.Cancel():
                yield actions.cancel_result(plan, self._cancel(call, plan))
            case _:
                yield actions.session_result(plan)

    def _list_actions(self, call: Call) -> Iterator[bytes]:
        call.message()
        return iter(actions.action_types())

    def _prepare(self, call: Call, sql: str) -> bytes:
        description = self._descriptions.of(sql, partial(self._statements.describe, call, sql, None))
        prepared = Prepared(sql, takes_parameters=bool(description.parameters))
        handle = self._prepared.add(call.principal.fingerprint, prepared)
        takes = schemas.parameter_schema(description.parameters)
        return actions.prepared_result(
            handle, description.schema or b"", b"" if takes is None else schemas.encapsulated(takes)
        )

    def _cancel(self, call: Call, plan: actions.Cancel) -> actions.CancelStatus:
        ticket_id = getattr(plan.target, "ticket_id", None)
        if ticket_id is None:
            return "not_cancellable"
        self._statements.cancel(call, ticket_id)
        return "cancelled"

    def _table_schemas(self, call: Call, names: Sequence[str]) -> Mapping[str, pa.Schema]:
        found = {}
        unavailable: EngineUnavailableError | None = None
        for name in names:
            quoted = '"' + name.replace('"', '""') + '"'
            try:
                schema = self._described(call, f"FROM {quoted}", None, None)
            except StatementError:
                continue  # A view that does not fit its data has no columns.
            except EngineUnavailableError as error:
                unavailable = error  # One that is not loaded yet has none either; without an engine, none has any.
                continue
            found[name] = pa.ipc.read_schema(pa.BufferReader(schema))
        if unavailable is not None and not found:
            raise unavailable
        return found


def _stream(row: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_table(row)
    return bytes(sink.getvalue())


def _refuse(text: str, _: Call) -> bytes:
    raise UnsupportedError(text)
