"""
The cost of authentication alone: CPU microseconds of one call of the authentication class.

    python -m benchmarks.floors.authentication KEYS [named]

The last key in the list is presented. With `named`, all keys are named digests. No other part of a request runs.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.subjects import KEY, key_settings

CALLS = 20_000


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "runtime.yaml"
        config.touch(0o600)
        keys = key_settings(int(sys.argv[1]), named="named" in sys.argv)
        config.write_text(json.dumps({"runtime": {"auth": {"api-key": keys}}}))
        os.environ |= {"DJANGO_SETTINGS_MODULE": "runtime_site.settings", "RUNTIME_CONFIG": str(config)}
        _measure()


def _measure() -> None:
    import django  # noqa: PLC0415 (the settings read the environment)

    django.setup()
    from django.test import RequestFactory  # noqa: PLC0415 (as above)
    from rest_framework.request import Request  # noqa: PLC0415

    from authkeys.authentication import ApiKeyAuthentication  # noqa: PLC0415
    from supervisor.startup import checked_config  # noqa: PLC0415

    checked_config()  # builds the key set of this process
    request = Request(RequestFactory().post("/v1/sql", headers={"X-API-Key": KEY}))
    best_s = min(_calls_s(ApiKeyAuthentication, request) for _ in range(5))
    sys.stdout.write(f"{best_s / CALLS * 1e6:.4f}\n")


def _calls_s(authentication: type, request: object) -> float:
    began = time.process_time()
    for _ in range(CALLS):
        # The framework creates an instance for each request.
        if authentication().authenticate(request) is None:
            raise AssertionError("the key is not accepted")
    return time.process_time() - began


if __name__ == "__main__":
    main()
