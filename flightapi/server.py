"""
The gRPC server of the Flight SQL endpoint: limits, port, start and stop.

A process that has imported gRPC must not fork, so the endpoint runs in a separate process.
"""

import logging
import ssl
import threading
from collections.abc import Callable
from typing import Any

import grpc

from authkeys.access import Access
from flightapi.authentication import AuthenticationInterceptor, CallDetails
from flightapi.call_threads import CallThreads
from flightapi.calls import IdleClock
from flightapi.open_calls import OpenCalls
from flightapi.prepared import PreparedStatements
from flightapi.service import FlightService
from queryengine.engine import QueryEngine
from runtimeconf.model import RuntimeConfig

logger = logging.getLogger(__name__)

#: Concurrent calls without a running or queued statement: metadata, uploads, slow readers.
SPARE_CALLS = 96
#: Threads per open call, and calls that gRPC accepts per open call. A call that is ended to make room keeps its thread
#: for a moment, and a burst from any client waits for threads here instead of being refused.
THREADS_PER_CALL = 2
ACCEPTED_PER_CALL = 16

#: The limit on all metadata of one call.
MAX_METADATA_BYTES = 16 * 1024

#: A client that does not respond to a ping is disconnected. Its statements end within the sum of both values.
KEEPALIVE_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 15_000
#: Seconds after which idle connections are closed. Clients reconnect automatically.
CONNECTION_IDLE_MS = 900_000
#: The time limit for setting up a connection, including TLS.
HANDSHAKE_MS = 15_000

#: Accept uncompressed messages only: a few compressed bytes could expand up to the message limit.
_IDENTITY_ONLY = 1


#: gRPC logs metadata that is not UTF-8, which may be a mistyped key.
_GRPC_LOGGER = "grpc._cython.cygrpc"
_METADATA_LOGGED = "Invalid encoding on "


class _Replaceable(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes each call to the service that is `current`."""

    def __init__(self, current: FlightService) -> None:
        self.current = current

    def service(self, details: CallDetails) -> Any:
        """Return the handler of a call."""
        return self.current.service(details)

    def expire(self) -> None:
        """Drop everything that was not used in time."""
        self.current.expire()


def _is_harmless(record: logging.LogRecord) -> bool:
    """Return whether a line of gRPC's log contains no metadata. The audit log has every refused call anyway."""
    return not str(record.msg).startswith(_METADATA_LOGGED)


class FlightServer:
    """The endpoint of *config*. Statements run on *engine*; *access* authenticates callers."""

    def __init__(self, config: RuntimeConfig, engine: QueryEngine, access: Access) -> None:
        """
        Bind the port.

        Raises:
            OSError: The port or the certificate cannot be used.
        """
        max_calls = config.query.workers + config.query.max_queued + SPARE_CALLS
        logging.getLogger(_GRPC_LOGGER).addFilter(_is_harmless)
        self._clock = IdleClock()
        self._threads = CallThreads(max_calls * THREADS_PER_CALL)
        self.open_calls = OpenCalls(max_calls)
        self._stopped = threading.Event()
        self._prepared = PreparedStatements()
        self._interceptor = AuthenticationInterceptor(access, config.http.trusted_proxies)
        self._service = _Replaceable(self._service_of(config, engine, access))
        self._clock.each_tick(self._service.expire)
        self._clock.each_tick(self.open_calls.trim)
        self._server = grpc.server(
            self._threads,
            handlers=[self._service],
            interceptors=[self._interceptor],
            options=_options(max_calls, config.flight.max_message_bytes),
            maximum_concurrent_rpcs=max_calls * ACCEPTED_PER_CALL,
        )
        #: The bound port, even if the configuration lets the system choose one.
        self.port = self._bind(config)

    def start(self) -> None:
        """Start accepting calls."""
        self._server.start()

    def before_call(self, act: Callable[[], None]) -> None:
        """Call *act*, which may call `adopt`, before each call is authenticated."""
        self._interceptor.before_call = act

    def each_tick(self, beat: Callable[[], None]) -> None:
        """Call *beat* every half second while this server can accept calls and end the calls of silent clients."""

        def tick() -> None:
            self._server.add_generic_rpc_handlers(())  # adds nothing, but acquires the lock under which calls begin
            beat()

        self._clock.each_tick(tick)

    def adopt(self, config: RuntimeConfig, engine: QueryEngine, access: Access) -> None:
        """
        Use other objects for the calls that arrive from now on. Calls in progress continue unchanged.

        Prepared statements are kept. Limits on messages and calls, and the port, do not change.
        """
        if config.tls.enabled:
            try:
                self._certificate = _certificate(config)
            except OSError as error:
                logger.error("%s The previous one is used.", error)  # noqa: TRY400 (the message says all)
        self._interceptor.access, self._interceptor.trusted_proxies = access, config.http.trusted_proxies
        self._service.current = self._service_of(config, engine, access)

    def _service_of(self, config: RuntimeConfig, engine: QueryEngine, access: Access) -> FlightService:
        return FlightService(
            config,
            engine,
            access,
            self._clock,
            self._prepared,
            open_calls=self.open_calls,
            newest=lambda: self._service.current,
        )

    def begin_stop(self, limit_s: float) -> None:
        """
        Stop accepting calls. Running calls have *limit_s* seconds to finish, and are then cancelled.

        The server does not wait for calls whose client has not yet sent a request.
        """
        self._stopped = self._server.stop(limit_s)
        self._clock.begin_stop()

    def has_stopped(self, within_s: float) -> bool:
        """Wait at most *within_s* seconds for the running calls, and return whether they have ended."""
        return self._stopped.wait(within_s)

    def close(self) -> None:
        """Cancel all calls and stop all threads."""
        self._server.stop(None)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._clock.close()

    def _bind(self, config: RuntimeConfig) -> int:
        address = str(config.flight.bind)
        try:
            if not config.tls.enabled:
                return int(self._server.add_insecure_port(address))
            self._certificate = _certificate(config)
            credentials = grpc.dynamic_ssl_server_credentials(self._certificate, lambda: self._certificate)
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError as error:
            raise OSError(f"Cannot listen on {address} for Flight SQL.") from error


def _options(max_calls: int, max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        # Otherwise two servers could silently share a port.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", max_calls),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        # Data that arrives after a ping satisfies the keepalive timeout, but not this timeout, whose default is one
        # minute.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # Clients may ping as often as this server.
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
        ("grpc.max_connection_idle_ms", CONNECTION_IDLE_MS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ]


def _certificate(config: RuntimeConfig) -> grpc.ServerCertificateConfiguration:
    """Load the certificate of *config* with `ssl` first: gRPC accepts any bytes and fails at the first client."""
    certificate, key = config.tls.certificate_file, config.tls.key_file
    if certificate is None or key is None:
        raise OSError("TLS is enabled without a certificate.")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        return grpc.ssl_server_certificate_configuration([(key.read_bytes(), certificate.read_bytes())])
    except ssl.SSLError as error:
        raise OSError(f"The certificate of runtime.tls cannot be used: {error.reason or error}.") from error
    except OSError as error:
        raise OSError(f"The certificate of runtime.tls cannot be read: {error.strerror or error}.") from error
