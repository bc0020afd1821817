"""A server of S3 on a port of loopback: moto, which checks keys and signatures as S3 does."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import botocore.config
import httpx
import pytest
from moto.server import ThreadedMotoServer

#: In a list; so few that short lists have pages.
KEYS_OF_A_PAGE = 4

#: How many requests moto answers without a look at their keys.
_WITHOUT_KEYS = "1000000"

#: May do everything; a user of the server.
_POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


@dataclass(frozen=True, slots=True)
class S3Server:
    """The *url* of the server; *key* and *secret* of one who may do everything, and of one who may do nothing."""

    url: str
    key: str
    secret: str
    other_key: str
    other_secret: str

    @property
    def params(self) -> dict[str, str]:
        return {"s3_endpoint": self.url, "s3_key": self.key, "s3_secret": self.secret}

    def client(self) -> Any:
        return _client("s3", self.url, self.key, self.secret)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start the server; from then on it answers only to who signs, and may do what is asked."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", str(KEYS_OF_A_PAGE))
        server.start()
        try:
            host, port = server.get_host_and_port()
            url = f"http://{host}:{port}"
            httpx.post(f"{url}/moto-api/reset").raise_for_status()
            httpx.post(f"{url}/moto-api/reset-auth", content=_WITHOUT_KEYS).raise_for_status()
            users = []
            with closing(_client("iam", url, "anybody", "anything")) as iam:
                for name in ("reader", "nobody"):
                    iam.create_user(UserName=name)
                    users.append(iam.create_access_key(UserName=name)["AccessKey"])
                iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=json.dumps(_POLICY))
            httpx.post(f"{url}/moto-api/reset-auth", content="0").raise_for_status()
            reader, nobody = ((user["AccessKeyId"], user["SecretAccessKey"]) for user in users)
            yield S3Server(url, *reader, *nobody)
            # This holds for all servers of the process, also for those that other tests start.
            httpx.post(f"{url}/moto-api/reset-auth", content=_WITHOUT_KEYS).raise_for_status()
        finally:
            server.stop()


def _client(service: str, url: str, key: str, secret: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=url,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=botocore.config.Config(retries={"total_max_attempts": 1}),
    )
