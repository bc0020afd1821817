"""A server of S3 on a port of loopback: moto, which checks keys and signatures as S3 does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import httpx

from tests.datasources.support import wait_for

#: In a list; so few that short lists have pages.
KEYS_OF_A_PAGE = 4

_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")

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
    process: int

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the server: connections are accepted, as its system does that, and nothing is answered."""
        os.kill(self.process, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process, signal.SIGCONT)

    @property
    def params(self) -> dict[str, str]:
        return {"s3_endpoint": self.url, "s3_key": self.key, "s3_secret": self.secret}

    def client(self) -> Any:
        return _client("s3", self.url, self.key, self.secret)


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start the server; from then on it answers only to who signs, and may do what is asked."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    environ = os.environ | {"MOTO_S3_DEFAULT_MAX_KEYS": str(KEYS_OF_A_PAGE)}
    with (
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environ) as process,
    ):
        said = Path(log.name)
        try:
            wait_for(lambda: process.poll() is not None or _ADDRESS.search(said.read_text()), "the server of S3")
            address = _ADDRESS.search(said.read_text())
            assert address is not None, said.read_text()
            url = address[0]
            users = []
            with closing(_client("iam", url, "anybody", "anything")) as iam:
                for name in ("reader", "nobody"):
                    iam.create_user(UserName=name)
                    users.append(iam.create_access_key(UserName=name)["AccessKey"])
                iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=json.dumps(_POLICY))
            httpx.post(f"{url}/moto-api/reset-auth", content="0").raise_for_status()
            reader, nobody = ((user["AccessKeyId"], user["SecretAccessKey"]) for user in users)
            yield S3Server(url, *reader, *nobody, process.pid)
        finally:
            process.kill()


def _client(service: str, url: str, key: str, secret: str) -> Any:
    config = botocore.config.Config(retries={"total_max_attempts": 1})
    return boto3.client(
        service,
        endpoint_url=url,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=config,
    )
