"""The environment variables that sources may use."""

import re
from collections.abc import Iterable

from runtimeconf.model import DatasetConfig

#: Proxies, also in lower case, and the trusted certificate authorities.
_CONNECTIONS = "(?i:(?:HTTP|HTTPS|ALL|NO)_PROXY)|SSL_CERT_FILE"
#: The credentials of the machine.
_MACHINE = "AWS_[A-Z0-9_]+"


def variables_for(datasets: Iterable[DatasetConfig]) -> re.Pattern[str]:
    """
    Return a pattern of the variables that loads of *datasets* may use.

    It includes the credentials of the machine only if a dataset is read with them.
    """
    uses_machine = any(dataset.params.get("s3_auth") == "iam_role" for dataset in datasets)
    return re.compile(f"{_CONNECTIONS}|{_MACHINE}" if uses_machine else _CONNECTIONS)
