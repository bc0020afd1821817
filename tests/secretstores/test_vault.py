"""The store `vault` over a real connection: logins, values, and what stops it."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from runtimeconf.errors import ConfigError
from runtimeconf.loader import load
from runtimeconf.secret_stores import SecretError
from secretstores.remote_store import RemoteStore
from secretstores.vault import Vault
from tests.runtimeconf.configurations import KEY, Fault, Load, with_keys
from tests.secretstores.vault_server import JWT, ROLE_ID, SECRET_ID, TOKEN, Handler, VaultServer, vault_server
from tests.system.harness import wait_for


@pytest.fixture
def vault() -> Iterator[VaultServer]:
    with vault_server() as server:
        server.secrets["secret/querykeep/prod"] = {"api_key": KEY, "number": 7}
        yield server


def of(vault: VaultServer, **params: str) -> str:
    listed = "".join(f", {name}: {value}" for name, value in params.items())
    store = f"{{from: vault:secret/querykeep/prod, name: vault, params: {{vault_addr: '{vault.url}'{listed}}}}}"
    return f"secrets:\n  - {store}\n" + with_keys("- ${ vault:api_key }")


TOKEN_IN = {"VAULT_TOKEN": TOKEN}


def test_one_secret_has_the_values_and_is_read_once(load_text: Load, vault: VaultServer) -> None:
    config = load_text(of(vault) + "        - ${ secrets:api_key }\n", TOKEN_IN)

    assert [key.reveal() for key in config.auth.keys] == [KEY, KEY]
    assert vault.asked == ["/v1/secret/data/querykeep/prod"]


@pytest.mark.parametrize(
    ("params", "environ", "login"),
    [
        ({"vault_token_file": "token"}, {}, []),
        (
            {"vault_auth": "approle", "vault_role_id": ROLE_ID},
            {"VAULT_SECRET_ID": SECRET_ID},
            ["/v1/auth/approle/login"],
        ),
        (
            {"vault_auth": "approle", "vault_role_id": ROLE_ID, "vault_secret_id_file": "secret-id"},
            {},
            ["/v1/auth/approle/login"],
        ),
        (
            {
                "vault_auth": "kubernetes",
                "vault_role": "querykeep",
                "vault_jwt_file": "jwt",
                "vault_mount": "clusters/one",
            },
            {},
            ["/v1/auth/clusters/one/login"],
        ),
    ],
)
def test_each_login(
    yaml_file: Path, vault: VaultServer, params: dict[str, str], environ: dict[str, str], login: list[str]
) -> None:
    for name, text in {"token": TOKEN, "secret-id": SECRET_ID, "jwt": JWT}.items():
        (yaml_file.parent / name).write_text(text + "\n")
    yaml_file.write_text(of(vault, **params))

    assert load(yaml_file, environ).auth.keys[0].reveal() == KEY
    assert vault.asked == [*login, "/v1/secret/data/querykeep/prod"]


def test_address_and_namespace_may_come_from_the_environment(load_text: Load, vault: VaultServer) -> None:
    vault.namespace = "team/a"
    text = of(vault).replace(f"vault_addr: '{vault.url}'", "vault_auth: token")

    config = load_text(text, {"VAULT_ADDR": vault.url + "/", "VAULT_NAMESPACE": "team/a", **TOKEN_IN})

    assert config.auth.keys[0].reveal() == KEY


def test_a_server_with_tls_needs_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    file = tmp_path / "runtime.yaml"
    with vault_server(context) as vault:
        vault.secrets["secret/querykeep/prod"] = {"api_key": KEY}
        file.write_text(of(vault, vault_ca_file="ca.pem"))
        assert load(file, TOKEN_IN).auth.keys[0].reveal() == KEY
        file.write_text(of(vault))
        with pytest.raises(ConfigError, match="the certificate of the server is not trusted: see vault_ca_file"):
            load(file, TOKEN_IN)
        file.write_text(of(vault, vault_ca_file="runtime.yaml"))
        with pytest.raises(ConfigError, match="vault_ca_file cannot be used"):
            load(file, TOKEN_IN)


PROBLEM = "secret 'api_key' in store vault: secret/querykeep/prod in the Vault at ADDRESS cannot be read: "


def gone(handler: Handler) -> None:
    handler.close_connection = True


def answering(status: int, content: object, **headers: str) -> Callable[[Handler], None]:
    return lambda handler: handler.answer(status, content, **headers)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (gone, "the server cannot be reached"),
        (answering(503, {"errors": ["Vault is sealed"]}), "the server is sealed, or starting"),
        (answering(500, {"errors": [TOKEN]}), "the server responded with status 500"),
        (
            answering(307, {}, Location="http://127.0.0.2:1/"),
            "the server redirects to another address: set vault_addr to that address",
        ),
        (answering(200, TOKEN.encode()), "the response is not in the expected format (JSONDecodeError)"),
        (answering(200, {"data": TOKEN}), "the response is not in the expected format (TypeError)"),
        (answering(200, {"data": {"data": TOKEN}}), "it is not a JSON object with a string for each name"),
        (answering(200, {"data": {"data": None}}), "it is not a JSON object with a string for each name"),
        (answering(200, b"x" * 2**22), "the response is larger than 2 MiB"),
    ],
)
def test_a_server_that_cannot_answer_is_a_fault(
    fault: Fault, vault: VaultServer, answer: Callable[[Handler], None], said: str
) -> None:
    vault.fault = answer

    found = fault(of(vault), TOKEN_IN)

    assert found.endswith(PROBLEM.replace("ADDRESS", vault.url.removeprefix("http://")) + said)
    assert TOKEN not in found
    assert KEY not in found


@pytest.mark.parametrize(
    ("params", "environ", "said"),
    [
        ({}, {"VAULT_TOKEN": "wrong"}, "the server does not allow it"),
        ({}, {"VAULT_TOKEN": ""}, "what is set is not a token: write one line of ASCII"),
        ({}, {"VAULT_TOKEN": f"{SECRET_ID}\n{SECRET_ID}"}, "what is set is not a token: write one line of ASCII"),
        ({"vault_token_file": "missing"}, {}, "missing cannot be read: there is no such file"),
        (
            {"vault_auth": "approle", "vault_role_id": "other"},
            {"VAULT_SECRET_ID": SECRET_ID},
            "the server rejected the login",
        ),
    ],
)
def test_a_login_that_is_refused_is_a_fault(
    fault: Fault, vault: VaultServer, params: dict[str, str], environ: dict[str, str], said: str
) -> None:
    found = fault(of(vault, **params), environ)

    assert found.endswith(f"cannot be read: {said}")
    assert SECRET_ID not in found


def test_a_value_that_is_missing_or_no_text_is_a_fault(fault: Fault, vault: VaultServer) -> None:
    assert fault(of(vault).replace("vault:api_key", "vault:other"), TOKEN_IN).endswith(
        "secret 'other' was not found; stores searched: vault (tried: the name other in secret/querykeep/prod in the "
        f"Vault at {vault.url.removeprefix('http://')})"
    )
    assert fault(of(vault).replace("vault:api_key", "vault:number"), TOKEN_IN).endswith(
        "has a value for it that is not a string"
    )
    vault.secrets.clear()
    assert fault(of(vault), TOKEN_IN).endswith("there is no such secret in a key-value engine, version 2")


def test_a_server_that_answers_in_drops_is_waited_for_once(vault: VaultServer) -> None:
    def drops(handler: Handler) -> None:
        handler.close_connection = True
        handler.send_response(200)
        handler.end_headers()
        while not vault.ended.wait(0.05):
            handler.wfile.write(b" ")

    vault.fault = drops
    read = Vault(address=vault.url, mount="secret", path="prod", login="", credentials={"token": TOKEN}).read
    store = RemoteStore("vault", "secret/prod", read, limit_s=1)

    for name in ("one", "two"):
        with pytest.raises(SecretError, match=r"^secret/prod cannot be read: no answer within 1 s$"):
            store.get(name)
    wait_for(lambda: vault.asked, "the request, which may come later than that")
    vault.ended.set()

    assert vault.asked == ["/v1/secret/data/prod"]


def test_half_of_a_character_is_no_text() -> None:
    store = RemoteStore("vault", "secret/prod", lambda: {"api_key": "\ud800"})

    with pytest.raises(SecretError, match="not a string"):
        store.get("api_key")
