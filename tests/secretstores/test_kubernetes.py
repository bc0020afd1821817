"""The store `kubernetes` over real TLS: values, and what stops it. A server on loopback answers as an API server."""

import base64
import re
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from runtimeconf.errors import ConfigError
from runtimeconf.loader import load
from tests.runtimeconf.configurations import KEY, with_keys
from tests.secretstores.vault_server import Handler, VaultServer, vault_server

TOKEN = "eyJ.canary.token"
VALUES = {"api_key": KEY.encode() + b"\n", "other": b"\xff\xfe", "empty": b""}
SECRET = {"kind": "Secret", "data": {name: base64.b64encode(value).decode() for name, value in VALUES.items()}}
PATH = "/api/v1/namespaces/team-a/secrets/querykeep"


def api(handler: Handler) -> None:
    if handler.headers.get("Authorization") != f"Bearer {TOKEN}":
        handler.answer(401, {"kind": "Status", "message": TOKEN})
    elif handler.path == PATH:
        handler.answer(200, SECRET)
    else:
        handler.answer(403 if "team-a" not in handler.path else 404, {"kind": "Status", "message": TOKEN})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VaultServer]:
    """An API server, and the files of a service account in `account`."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    account = tmp_path / "account"
    account.mkdir()
    authority.cert_pem.write_to_path(account / "ca.crt")
    (account / "token").write_text(TOKEN)
    (account / "namespace").write_text("team-a")
    with vault_server(context) as server:
        server.fault = api
        yield server


def loaded(server: VaultServer, directory: Path, name: str = "api_key", of: str = "querykeep") -> str:
    store = f"{{from: kubernetes:{of}, name: k8s, params: {{directory: account}}}}"
    (directory / "runtime.yaml").write_text(f"secrets:\n  - {store}\n" + with_keys(f"- ${{ k8s:{name} }}"))
    host, _, port = server.url.removeprefix("https://").partition(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    return load(directory / "runtime.yaml", environ).auth.keys[0].reveal()


def test_a_value_is_that_of_the_secret_in_the_namespace_of_the_pod(server: VaultServer, tmp_path: Path) -> None:
    assert loaded(server, tmp_path) == KEY
    assert server.asked == [PATH]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("other", "the secret querykeep of Kubernetes has a value for it that is not a string"),
        (
            "empty",
            "secret 'empty' in store k8s is empty (tried: the name empty in the secret querykeep of Kubernetes)",
        ),
        (
            "missing",
            (
                "secret 'missing' was not found; stores searched: k8s (tried: the name missing in the secret "
                "querykeep of Kubernetes)"
            ),
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_a_fault(server: VaultServer, tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(said)}$"):
        loaded(server, tmp_path, name)


def answering(status: int, content: object, **headers: str) -> Callable[[Handler], None]:
    return lambda handler: handler.answer(status, content, **headers)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (answering(302, {}, Location="https://127.0.0.2:1/"), "address: set KUBERNETES_SERVICE_HOST to that address"),
        (answering(500, TOKEN.encode()), "the server responded with status 500"),
        (answering(200, TOKEN.encode()), "the response is not in the expected format (JSONDecodeError)"),
        (answering(200, [TOKEN]), "the response is not in the expected format (AttributeError)"),
        (answering(200, {"data": {"api_key": TOKEN}}), "the response is not in the expected format (Error)"),
        (
            answering(200, {"data": None}),
            (
                "secret 'api_key' was not found; stores searched: k8s (tried: the name api_key in the secret "
                "querykeep of Kubernetes)"
            ),
        ),
    ],
)
def test_a_server_that_makes_no_sense_is_a_fault(
    server: VaultServer, tmp_path: Path, answer: Callable[[Handler], None], said: str
) -> None:
    server.fault = answer

    with pytest.raises(ConfigError) as caught:
        loaded(server, tmp_path)

    assert str(caught.value).endswith(said)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("token", "wrong", "the server does not recognize the pod's service account"),
        ("token", "two\nlines", "token is not a token: write one line of ASCII"),
        ("token", None, "token cannot be read: there is no such file"),
        ("namespace", "team-b", "the pod's service account cannot read it"),
        ("namespace", "team-a/../b", "is not the name of a namespace"),
        ("ca.crt", "no certificate", "ca.crt cannot be used: it contains no certificate"),
        ("ca.crt", trustme.CA().cert_pem.bytes().decode(), "the certificate of the server is not trusted: see "),
    ],
)
def test_a_service_account_that_cannot_be_used_is_a_fault(
    server: VaultServer, tmp_path: Path, file: str, content: str | None, said: str
) -> None:
    path = tmp_path / "account" / file
    path.unlink() if content is None else path.write_text(content)

    with pytest.raises(ConfigError) as caught:
        loaded(server, tmp_path)

    assert said in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_a_secret_that_is_not_there_is_a_fault(server: VaultServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the secret others of Kubernetes cannot be read: there is no such secret"):
        loaded(server, tmp_path, of="others")
