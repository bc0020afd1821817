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
from flightapi.speculation import AnswersAhead, Asked
from flightapi.statements import Statements
from queryengine.engine import ArrowParameters, Description, Parameters, QueryEngine
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
            return many_answers(answer, self._begin(verdict, HANDSHAKE_IDLE_S), SEND_GRACE_S)
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

    def _schema_of(self, call: Call, plan: commands.Plan, ticket_id: bytes = b"") -> tuple[bytes, commands.Plan]:
        """
        Return the schema of what *plan* will answer, and the plan for its ticket.

        With *ticket_id*, which that ticket will have, the answer itself may be found as well, and waits for its call.
        """
        if isinstance(plan, Statement):
            return self._described(Asked(call.principal.fingerprint, ticket_id, plan.sql), call), plan
        if isinstance(plan, PreparedExecution):
            fingerprint = call.principal.fingerprint
            prepared = self._prepared.get(fingerprint, plan.handle)
            asked = Asked(fingerprint, ticket_id, prepared.sql, prepared.parameters)
            schema = self._described(asked, call, plan.handle)
            if prepared.takes_parameters or prepared.parameters is not None:
                return schema, plan
            # Such a ticket needs nothing that is kept here.
            return schema, Statement(prepared.sql)
        return schemas.encapsulated(metadata.answer_schema(plan)), plan

    def _described(self, asked: Asked, call: Call, handle: bytes = b"") -> bytes:
        """Return the schema of the statement *asked* for, which was prepared if it has a *handle*."""
        if handle and asked.name:
            found = self._ahead.pass_on(Asked(asked.fingerprint, handle, asked.sql, asked.parameters), asked)
            if found is not None:
                return found.schema or b""
        if asked.name and self._ahead.limit_s(asked.sql):
            published = self._ahead.published()
            found = self._run_ahead(call, asked.sql, asked.given)
            self._ahead.keep(asked, found, published)
        elif asked.parameters is None:
            describe = partial(self._statements.describe, call, asked.sql, ())
            found = self._descriptions.of(asked.sql, describe)
        else:
            found = self._statements.describe(call, asked.sql, asked.given)
        return found.schema or b""

    def _run_ahead(self, call: Call, sql: str, parameters: Parameters | None) -> Description:
        """Describe a statement, with its answer unless it takes long, or took long before."""
        limit_s = self._ahead.limit_s(sql)
        found = self._statements.describe(call, sql, parameters, limit_s)
        if limit_s and found.answer is None and (parameters is not None or not found.parameters):
            self._ahead.was_in_vain(sql)
        return found

    # Any number of answers.

    def _do_get(self, call: Call) -> Iterator[bytes]:
        plan = commands.plan_ticket(call.message())
        fingerprint = call.principal.fingerprint
        if isinstance(plan, Statement):
            return self._run(call, Asked(fingerprint, plan.ticket_id or b"", plan.sql))
        if isinstance(plan, PreparedExecution):
            prepared = self._prepared.get(fingerprint, plan.handle)
            return self._run(call, Asked(fingerprint, plan.ticket_id or b"", prepared.sql, prepared.parameters))
        table = metadata.answer(plan, self._relations, partial(self._table_schemas, call), self._facts)
        return framing.table_data(table)

    def _run(self, call: Call, asked: Asked) -> Iterator[bytes]:
        answer = self._ahead.take(asked) if asked.name else None
        return self._statements.run(call, asked.sql, asked.given, asked.name or None, answer)

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
        published = self._ahead.published()
        description = self._descriptions.of(sql, partial(self._run_ahead, call, sql, None))
        prepared = Prepared(sql, takes_parameters=bool(description.parameters))
        fingerprint = call.principal.fingerprint
        handle = self._prepared.add(fingerprint, prepared)
        if description.is_steady:
            self._ahead.keep(Asked(fingerprint, handle, sql), description, published)
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
                schema = self._described(Asked(call.principal.fingerprint, b"", f"FROM {quoted}"), call)
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
