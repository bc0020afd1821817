"""The store `aws_secrets_manager`, on moto."""

import json
from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer

from runtimeconf.connector import Package
from tests.runtimeconf.configurations import KEY, Fault, Load, with_keys

REGION = "eu-central-1"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        client = boto3.client(
            "secretsmanager", endpoint_url=url, region_name=REGION, aws_access_key_id="a", aws_secret_access_key="b"
        )
        client.create_secret(Name="prod/querykeep", SecretString=json.dumps({"api_key": KEY, "list": ["canary"]}))
        client.create_secret(Name="text", SecretString="canary")
        client.create_secret(Name="binary", SecretBinary=b"canary")
        client.create_secret(Name="deleted", SecretString="{}")
        client.delete_secret(SecretId="deleted")
        yield url
    finally:
        server.stop()


@pytest.fixture
def account(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the environment name the server and credentials."""
    for name, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def of(secret: str, name: str = "api_key", params: str = f", params: {{aws_region: {REGION}}}") -> str:
    store = f"{{from: 'aws_secrets_manager:{secret}', name: aws{params}}}"
    return f"secrets:\n  - {store}\n" + with_keys(f"- ${{ aws:{name} }}")


@pytest.mark.usefixtures("account")
def test_one_secret_has_the_values(load_text: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_text(of("prod/querykeep")).auth.keys[0].reveal() == KEY
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    assert load_text(of("prod/querykeep", params="")).auth.keys[0].reveal() == KEY


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            of("prod/querykeep", "other"),
            "stores searched: aws (tried: the name other in prod/querykeep in AWS Secrets Manager)",
        ),
        (of("prod/querykeep", "list"), "has a value for it that is not a string"),
        (of("nothing"), "there is no such secret in this region"),
        (of("deleted"), "it is marked for deletion"),
        (of("text"), "it is not a JSON object with a string for each name"),
        (of("binary"), "it is not a JSON object with a string for each name"),
        (of("text", params=""), "no region is set: set aws_region, or AWS_DEFAULT_REGION in the environment"),
    ],
)
def test_a_secret_that_cannot_be_used_is_a_fault(fault: Fault, text: str, said: str) -> None:
    found = fault(text)

    assert found.endswith(said)
    assert "canary" not in found


@pytest.mark.usefixtures("account")
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1", "the service does not respond (EndpointConnectionError)"),
        ("AWS_ACCESS_KEY_ID", None, "there are no AWS credentials"),
    ],
)
def test_a_service_that_cannot_be_asked_is_a_fault(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None, said: str
) -> None:
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)

    assert fault(of("prod/querykeep")).endswith(f"prod/querykeep in AWS Secrets Manager cannot be read: {said}")


def test_the_library_must_be_installed(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secretstores.aws_secrets_manager._BOTOCORE", Package("no_such_module", "botocore~=1.44"))

    assert "the store needs a library from the sources extra: python -m pip install" in fault(of("a"))
