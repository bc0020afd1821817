"""The worker of the web tier with time limits that a test can wait for."""

from httpserver import client_connection, gevent_worker


class ImpatientWorker(gevent_worker.GeventWebWorker):
    """Allows a client one second for each step."""

    def run(self) -> None:
        gevent_worker.HEAD_TIMEOUT_S = gevent_worker.BODY_TIMEOUT_S = 1.0
        client_connection.SEND_TIMEOUT_S = client_connection.HANDSHAKE_TIMEOUT_S = 1.0
        super().run()
