"""The secret store `aws_secrets_manager`: a secret of AWS Secrets Manager that is a JSON object."""

import importlib
import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from runtimeconf.connector import Package
from runtimeconf.fields import ParsedField, matching
from runtimeconf.secret_stores import SecretError, SecretStore
from runtimeconf.store_kinds import StoreEntry, StoreKind
from secretstores.remote_store import RemoteStore

_BOTOCORE: Final = Package("botocore", "botocore~=1.44")

#: Our reasons by the service's error code.
_REASONS: Final[Mapping[str, str]] = {
    "AccessDeniedException": "the AWS credentials do not allow access to it",
    "DecryptionFailure": "it cannot be decrypted with its key",
    "ExpiredTokenException": "the AWS credentials have expired",
    "InvalidRequestException": "it is marked for deletion",
    "InvalidSignatureException": "the AWS credentials are wrong",
    "ResourceNotFoundException": "there is no such secret in this region",
    "UnrecognizedClientException": "AWS does not recognize the credentials",
}


def read(secret: str, region: str | None) -> Mapping[str, Any]:
    """
    Read *secret* (a name or an ARN) with the credentials that the AWS SDK finds.

    Raises:
        SecretError: The service cannot be reached or refuses the request.
    """
    session = importlib.import_module("botocore.session").get_session()
    exceptions = importlib.import_module("botocore.exceptions")
    config = importlib.import_module("botocore.config").Config(
        connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 1}
    )
    try:
        client = session.create_client("secretsmanager", region_name=region, config=config)
        answer = client.get_secret_value(SecretId=secret)
    except exceptions.ClientError as exc:
        code = exc.response.get("Error", {}).get("Code", "")
        raise SecretError(_REASONS.get(code, f"the service refused the request ({code[:60]})")) from None
    except exceptions.NoRegionError:
        raise SecretError("no region is set: set aws_region, or AWS_DEFAULT_REGION in the environment") from None
    except exceptions.NoCredentialsError:
        raise SecretError("there are no AWS credentials") from None
    except exceptions.BotoCoreError as exc:
        raise SecretError(f"the service does not respond ({type(exc).__name__})") from None
    text = answer.get("SecretString")
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SecretError("it is not a JSON object with a string for each name")
    return found


def _make(entry: StoreEntry) -> SecretStore:
    if entry.path.validation.needs_libraries and not _BOTOCORE.is_installed:
        message = f"the store needs a library from the sources extra: {_BOTOCORE.install_command}"
        entry.fault(message, "from")
    where = f"{entry.location} in AWS Secrets Manager"
    return RemoteStore(entry.name, where, partial(read, entry.location, entry.params.get("aws_region")))


AWS_SECRETS_MANAGER: Final = StoreKind(
    make=_make,
    params={"aws_region": ParsedField("a region such as eu-central-1", matching(r"[a-z0-9-]{1,40}"))},
    location=re.compile(r"[A-Za-z0-9/_+=.@:-]{1,512}"),
    example="prod/querykeep",
)
