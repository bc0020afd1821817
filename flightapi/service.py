"""The RPCs of Arrow Flight. `commands` and `actions` parse requests and serialise responses. This module runs them."""

import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
import pyarrow as pa
from msgspec.structs import replace

from authkeys.access import Access
from authkeys.principal import ANONYMOUS, Principal
from flightapi import actions, commands, metadata
from flightapi.authentication import HANDSHAKE, RPCS, Accepted, CallDetails, accepted
from flightapi.calls import HANDSHAKE_IDLE_S, IDLE_S, SEND_GRACE_S, Call, IdleClock, many_answers, one_answer
from flightapi.commands import MetadataCommand, PreparedExecution, Statement
from flightapi.descriptions import TTL_S, Descriptions, StatementRequest
from flightapi.errors import UnknownPreparedStatementError, UnsupportedError
from flightapi.handshake import Handshake
from flightapi.open_calls import OpenCalls
from flightapi.prepared import Prepared, PreparedStatements
from flightapi.protocol import uploads
from flightapi.protocol.messages import PATHS, pack
from flightapi.request_counts import RequestCounts, Step, claim_of, claim_of_command
from flightapi.speculation import RESULT_TTL_S, SpeculationBudget
from flightapi.statements import Statements
from queryengine.encoders import arrow, flight
from queryengine.engine import ArrowParameters, Description, Parameters, QueryEngine
from queryengine.errors import EngineUnavailableError, StatementError
from queryengine.values import qualified
from runtimeconf.model import RuntimeConfig

_UNSUPPORTED = {
    "PollFlightInfo": "PollFlightInfo is not supported: use GetFlightInfo.",
    "ListFlights": "ListFlights is not supported: use the Flight SQL command GetTables.",
    "DoExchange": "DoExchange is not supported.",
}

_NO_METHOD = "No such method."


class FlightService(grpc.GenericRpcHandler):  # type: ignore[misc]
    """
    Handles accepted calls.

    *access* authenticates callers, and *clock* limits how long calls wait for clients. *prepared* and *open_calls*
    outlive the service. A call runs on the service that is the *newest* when its message arrives. Its caller is
    authenticated again if the access object has changed since then, so that each scope meets its own engine.
    """

    def __init__(  # noqa: PLR0913 (one is optional)
        self,
        config: RuntimeConfig,
        engine: QueryEngine,
        access: Access,
        clock: IdleClock,
        prepared: PreparedStatements,
        *,
        open_calls: OpenCalls,
        newest: "Callable[[], FlightService] | None" = None,
    ) -> None:
        self._engine = engine
        self.access, self._newest = access, newest or (lambda: self)
        self._statements = Statements(engine, config.query.slow_s)
        self._descriptions = Descriptions(config.state_dir, TTL_S)
        self._results = Descriptions(config.state_dir, RESULT_TTL_S)
        self._budget = SpeculationBudget()
        self._prepared = prepared
        self._open_calls = open_calls
        self._requests = RequestCounts(engine)
        self._trusted_proxies = config.http.trusted_proxies
        self._handshake = Handshake(access, self._trusted_proxies)
        self._relations = (
            *(metadata.Relation(dataset.name, "TABLE", dataset.documentation) for dataset in config.datasets),
            *(metadata.Relation(view.name, "VIEW", view.documentation) for view in config.views),
        )
        self._max_bytes = config.flight.max_message_bytes
        self._clock = clock
        send_s = config.query.timeout_s + SEND_GRACE_S
        many = partial(many_answers, send_s=send_s)
        handlers: dict[str, tuple[Callable[[Any, Any], Any], Callable[[FlightService, Call], Any]]] = {
            "GetFlightInfo": (one_answer, FlightService._get_flight_info),
            "GetSchema": (one_answer, FlightService._get_schema),
            "DoGet": (many, FlightService._do_get),
            "DoPut": (many, FlightService._do_put),
            "DoAction": (many, FlightService._do_action),
            "ListActions": (many, FlightService._list_actions),
        }
        self._handlers = {PATHS[name]: handler for name, handler in handlers.items()}

    def expire(self) -> None:
        """Drop everything that was not used or claimed in time. Call this periodically."""
        self._results.expire()
        self._prepared.expire()
        self._requests.expire()

    def service(self, details: CallDetails) -> Any:
        """Return the handler of a call that passed the interceptor."""
        decision = details.decision
        if details.method == HANDSHAKE:
            answer = partial(self._handshake.answer, decision=decision)
            return many_answers(answer, self._begin(details, HANDSHAKE_IDLE_S), SEND_GRACE_S)
        if decision is None:
            raise TypeError("The call has not been authenticated.")
        begin = self._begin(details, IDLE_S)
        if details.method not in self._handlers:
            return one_answer(partial(_refuse, _UNSUPPORTED.get(RPCS.get(details.method, ""), _NO_METHOD)), begin)
        handler, act = self._handlers[details.method]
        return handler(partial(self._run, act, details.method, decision), begin)

    def _run(self, act: Callable[["FlightService", Call], Any], method: str, decision: Accepted, call: Call) -> Any:
        """Run *act* on the newest service, for its caller, once the message of *call* has arrived."""
        call.wait()
        service = self._newest()
        if service.access is not decision.access:
            call.principal = service.caller_of(method, call.context)
        return act(service, call)

    def _begin(self, details: CallDetails, idle_s: float) -> Callable[[Iterator[bytes], Any], Call]:
        principal = ANONYMOUS if details.decision is None else details.decision.principal
        check_again = partial(self._check_again, details.method)
        return partial(
            Call,
            principal,
            name=RPCS.get(details.method, "unknown"),
            clock=self._clock,
            idle_s=idle_s,
            check_again=check_again,
            open_calls=self._open_calls,
        )

    def _check_again(self, method: str, principal: Principal, context: Any) -> Principal:
        service = self._newest()
        if service is self or method == HANDSHAKE:
            return principal
        return service.caller_of(method, context)

    def caller_of(self, method: str, context: Any) -> Principal:
        """Authenticate the call to *method* in *context*, or refuse it."""
        return accepted(self.access, method, context, self._trusted_proxies).principal

    # RPCs with one response.

    def _get_flight_info(self, call: Call) -> bytes:
        descriptor = call.message()
        ticket_id = secrets.token_bytes(commands.TICKET_ID_BYTES)
        plan = commands.plan_descriptor(descriptor)
        if isinstance(plan, MetadataCommand):
            claim = claim_of_command(pack(plan.message))
            counted = self._requests.count(call.principal, Step.DESCRIBE)
            schema = _schema_of_metadata(plan)
        else:
            request = self._request_of(call, plan, ticket_id)
            claim, handle = claim_of(request), getattr(plan, "handle", b"")
            counted = self._requests.count(call.principal, Step.DESCRIBE, handle)
            schema = self._describe(call, request, handle)
            plan = self._plan_of_ticket(call, plan, request)
        self._requests.grant(call.principal, claim, counted)
        return commands.flight_info(descriptor, schema, commands.ticket(plan, ticket_id))

    def _get_schema(self, call: Call) -> bytes:
        plan = commands.plan_descriptor(call.message())
        if isinstance(plan, MetadataCommand):
            self._requests.count(call.principal, Step.FETCH)
            return commands.schema_result(_schema_of_metadata(plan))
        request = self._request_of(call, plan, b"")
        self._requests.count(call.principal, Step.FETCH)
        return commands.schema_result(self._describe(call, request, getattr(plan, "handle", b"")))

    def _request_of(self, call: Call, plan: Statement | PreparedExecution, ticket_id: bytes) -> StatementRequest:
        """Return the statement that *plan* runs. *ticket_id* is the id of its ticket, b"" without one."""
        fingerprint = call.principal.fingerprint
        if isinstance(plan, Statement):
            return StatementRequest(fingerprint, ticket_id, plan.sql, scope=call.principal.scope)
        prepared = self._prepared_of(call, plan.handle)
        return StatementRequest(fingerprint, ticket_id, prepared.sql, prepared.parameters, call.principal.scope)

    def _prepared_of(self, call: Call, handle: bytes) -> Prepared:
        """Return the prepared statement *handle*. A call with an unknown handle counts as a request."""
        try:
            return self._prepared.get(call.principal.fingerprint, handle)
        except UnknownPreparedStatementError:
            self._requests.count(call.principal, Step.FETCH)
            raise

    def _plan_of_ticket(
        self, call: Call, plan: Statement | PreparedExecution, request: StatementRequest
    ) -> Statement | PreparedExecution:
        """Return the content of the ticket for *request*: the text if possible, because it outlives a handle."""
        if isinstance(plan, Statement) or request.parameters is not None:
            return plan
        prepared = self._prepared.get(call.principal.fingerprint, plan.handle)
        return plan if prepared.takes_parameters else Statement(prepared.sql)

    def _describe(self, call: Call, request: StatementRequest, handle: bytes = b"") -> bytes:
        """Return the result schema of *request*. *handle* is the handle of its prepared statement, if any."""
        call.principal.require("query")  # also for a cached description
        if handle and request.claim:
            waiting = self._results.move(replace(request, claim=handle), request)
            if waiting is not None:
                return waiting.schema or b""
        if request.claim and self._budget.of(request.sql):
            version = self._results.data_version()
            description = self._speculate(call, request.sql, request.bound)
            if description.answer is not None:
                self._results.keep(request, description, version)
        elif request.parameters is None:
            describe = partial(self._statements.describe, call, request.sql, [])
            description = self._descriptions.of(request.sql, call.principal.scope, describe)
        else:
            description = self._statements.describe(call, request.sql, request.bound)
        return description.schema or b""

    def _speculate(self, call: Call, sql: str, parameters: Parameters | None) -> Description:
        """Describe a statement, with its result if it finishes within the speculation budget."""
        budget_s = self._budget.of(sql)
        description = self._statements.describe(call, sql, parameters, budget_s)
        if budget_s and description.answer is None and (parameters is not None or not description.parameters):
            self._budget.back_off(sql)
        return description

    # RPCs with any number of responses.

    def _do_get(self, call: Call) -> Iterator[bytes]:
        plan = commands.plan_ticket(call.message())
        if isinstance(plan, MetadataCommand):
            self._requests.count(call.principal, Step.FETCH, claim_of_command(pack(plan.message)))
            schemas = partial(self._table_schemas, call)
            relations = [one for one in self._relations if call.principal.may_name(one.name)]
            table = metadata.answer(plan.message, relations, schemas, self._max_bytes)
            return map(b"".join, flight.messages(table.schema, arrow.cut(table.schema, table.to_batches())))
        request = self._request_of(call, plan, plan.ticket_id)
        self._requests.count(call.principal, Step.FETCH, claim_of(request))
        waiting = self._results.take(request) if request.claim else None
        answer = None if waiting is None else waiting.answer
        return self._statements.run(call, request.sql, request.bound, request.claim, answer)

    def _do_put(self, call: Call) -> Iterator[bytes]:
        incoming = call.messages()
        first = next(incoming, b"")
        handle = commands.plan_put(first)
        fingerprint = call.principal.fingerprint
        self._prepared_of(call, handle)  # refuse an unknown handle before reading the parameters
        counted = self._requests.count(call.principal, Step.BIND, handle)
        row = uploads.read_row(itertools.chain([first], incoming), self._max_bytes)
        self._prepared.bind(fingerprint, handle, ArrowParameters(_stream(row)) if row.num_rows else None)
        self._requests.grant(call.principal, handle, counted)
        yield commands.bind_result(handle)

    def _do_action(self, call: Call) -> Iterator[bytes]:
        plan = actions.plan_action(call.message())
        match plan:
            case actions.CreatePrepared():
                yield self._prepare(call, plan.sql)
            case actions.ClosePrepared():
                self._prepared.close(call.principal.fingerprint, plan.handle)
            case actions.Cancel():
                yield actions.cancel_result(plan, is_cancelled=self._cancel(call, plan))
            case actions.SessionAction():
                yield plan.answer

    def _list_actions(self, call: Call) -> Iterator[bytes]:
        call.message()
        return iter(actions.action_types())

    def _prepare(self, call: Call, sql: str) -> bytes:
        counted = self._requests.count(call.principal, Step.PREPARE)
        call.principal.require("query")
        version = self._results.data_version()
        description = self._descriptions.of(sql, call.principal.scope, partial(self._speculate, call, sql, None))
        prepared = Prepared(sql, takes_parameters=bool(description.parameters))
        fingerprint = call.principal.fingerprint
        handle = self._prepared.add(fingerprint, prepared)
        self._requests.grant(call.principal, handle, counted)
        if description.is_cacheable and description.answer is not None:
            request = StatementRequest(fingerprint, handle, sql, scope=call.principal.scope)
            self._results.keep(request, description, version)
        return actions.prepared_result(handle, description.schema or b"", description.parameters)

    def _cancel(self, call: Call, plan: actions.Cancel) -> bool:
        ticket_id = getattr(plan.target, "ticket_id", b"")
        if ticket_id:
            self._statements.cancel(call, ticket_id)
        return bool(ticket_id)

    def _table_schemas(self, call: Call, names: Sequence[str]) -> Mapping[str, pa.Schema]:
        found = {}
        unavailable: EngineUnavailableError | None = None
        for name in names:
            try:
                request = StatementRequest(
                    call.principal.fingerprint, b"", f"FROM {qualified(name)}", scope=call.principal.scope
                )
                schema = self._describe(call, request)
            except StatementError:
                continue  # A view that does not fit its data is listed without columns.
            except EngineUnavailableError as error:
                unavailable = error  # A dataset that is not loaded yet is also listed without columns.
                continue
            found[name] = pa.ipc.read_schema(pa.BufferReader(schema))
        if unavailable is not None and not found:  # The engine itself is unavailable.
            raise unavailable
        return found


def _schema_of_metadata(plan: MetadataCommand) -> bytes:
    return bytes(metadata.answer_schema(plan.message).serialize())


def _stream(row: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_table(row)
    return bytes(sink.getvalue())


def _refuse(text: str, _: Call) -> bytes:
    raise UnsupportedError(text)
