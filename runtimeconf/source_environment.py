"""What of the environment counts for sources."""

from __future__ import annotations

import re
from collections.abc import Iterable

from runtimeconf.model import DatasetConfig

#: Proxies, whose names are also written in small letters, and the authorities to trust.
_CONNECTIONS = "(?i:(?:HTTP|HTTPS|ALL|NO)_PROXY)|SSL_CERT_FILE"
#: Where the credentials of the machine are, or what they are.
_MACHINE = "AWS_[A-Z0-9_]+"


def variables_for(datasets: Iterable[DatasetConfig]) -> re.Pattern[str]:
    """
    Return what the names of the variables match that loads of *datasets* may go by.

    Those with credentials are among them only where a dataset is to be read with the credentials of the machine.
    """
    takes_machine = any(dataset.params.get("s3_auth") == "iam_role" for dataset in datasets)
    return re.compile(f"{_CONNECTIONS}|{_MACHINE}" if takes_machine else _CONNECTIONS)
