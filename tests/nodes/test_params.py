"""`runtime.snapshots` with a bucket of S3."""

import pytest
from msgspec.structs import replace

from nodes.params import S3
from runtimeclient.distribution import requirements_of
from runtimeconf import handover
from runtimeconf.connector import Package
from runtimeconf.errors import ConfigError
from runtimeconf.model import SnapshotsConfig
from runtimeconf.plugins import SNAPSHOT_STORES
from tests.runtimeconf.configurations import Load

SECRET = "canary-Zq8vT3mN6bX9cL2pR5sW7yD0fG4h"
KEYS = "s3_key: a, s3_secret: b"


def of(text: str) -> str:
    return f"runtime: {{snapshots: {text}}}"


def test_all_fields(load_text: Load) -> None:
    text = of(
        '{location: "s3://lake/a/b/", role: follower, poll: 500ms, '
        'params: {s3_endpoint: "https://minio.example:9000", s3_key: a, s3_secret: "${ env:S }", client_timeout: 5s}}'
    )

    config = load_text(text, {"S": SECRET})

    params = {"s3_endpoint": "https://minio.example:9000", "s3_key": "a", "s3_secret": SECRET, "client_timeout": 5.0}
    assert config.snapshots == SnapshotsConfig(location="s3://lake/a/b", role="follower", params=params, poll_s=0.5)
    assert SECRET not in repr(config)
    assert handover.rebuilt(SnapshotsConfig, handover.plain(config.snapshots)) == config.snapshots
    assert SECRET not in str(handover.plain(handover.without_sources(config)))
    assert any("s3_key" in warning and "is in plain text" in warning for warning in config.warnings)


def test_the_defaults(load_text: Load) -> None:
    config = load_text("{}")

    assert config.snapshots is None
    shared = load_text(of("{location: s3://lake/a, role: auto, params: {s3_auth: iam_role}}")).snapshots
    assert shared == SnapshotsConfig(location="s3://lake/a", role="auto", params={"s3_auth": "iam_role"}, poll_s=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "runtime.snapshots: is empty"),
        ("{location: s3://lake/a}", "lacks the field role"),
        (f"{{role: auto, params: {{{KEYS}}}}}", "lacks the field location"),
        ("{location: s3://lake/a, role: leader}", "runtime.snapshots.role: must be publisher, follower or auto"),
        (
            "{location: lake/a, role: auto}",
            "must be a storage location used only by these nodes.*it must begin with one of s3:",
        ),
        ("{location: s3:lake/a, role: auto}", "write s3:// before the bucket"),
        ("{location: s3://lake, role: auto}", "a dedicated prefix"),
        ("{location: s3://lake/a//b, role: auto}", "a dedicated prefix"),
        ("{location: s3://lake/../b, role: auto}", "a dedicated prefix"),
        ("{location: 's3://lake/a?b', role: auto}", "letters, digits and"),
        ("{location: 's3://lake/${ env:A }', role: auto}", "letters, digits and"),
        ("{location: s3://l, role: auto}", "not a bucket name"),
        ("{location: s3://lake/a, role: auto, poll: 1h}", "runtime.snapshots.poll: must be"),
        ("{location: s3://lake/a, role: auto}", "runtime.snapshots.params: lacks credentials"),
        ("{location: s3://lake/a, role: auto, params: {s3_auth: public}}", "params: lacks credentials"),
        ("{location: s3://lake/a, role: auto, params: {s3_key: a}}", "has only one of s3_key and s3_secret"),
        (f'{{location: s3://lake/a, role: auto, params: {{s3_endpoint: "http://h.example", {KEYS}}}}}', "without TLS"),
        ("{location: s3://lake/a, role: auto, params: {file_format: csv}}", "file_format: unknown field"),
        ("{location: s3://lake/a, role: auto, params: {s3_url_style: x}}", "s3_url_style: must be path or vhost"),
    ],
)
def test_what_is_invalid_is_named(load_text: Load, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_text(of(text))


def test_a_fault_shows_no_password(load_text: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(of(f'{{location: "s3://user:{SECRET}@lake/a", role: auto}}'))

    assert SECRET not in str(caught.value)


def test_without_the_library_the_command_that_installs_it_is_named(
    load_text: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    (requirement,) = requirements_of("nodes")
    assert S3.packages == (Package("obstore", requirement),)
    monkeypatch.setitem(SNAPSHOT_STORES._loaded, "s3", replace(S3, packages=(Package("no_such_module", requirement),)))

    with pytest.raises(ConfigError, match=f"python -m pip install '{requirement}'"):
        load_text(of(f"{{location: s3://lake/a, role: auto, params: {{{KEYS}}}}}"))


def test_a_follower_needs_neither_the_secrets_nor_the_libraries_of_sources(load_text: Load) -> None:
    text = """
        runtime: {snapshots: {location: s3://lake/a, role: ROLE, params: {s3_auth: iam_role}}}
        datasets:
          - from: file:orders.csv
            name: orders
            params: {csv_has_header: "false", csv_quote: "${ env:P }"}
        """

    (dataset,) = load_text(text.replace("ROLE", "follower")).datasets

    assert dataset.params == {"csv_has_header": False}
    with pytest.raises(ConfigError, match="P"):
        load_text(text.replace("ROLE", "auto"))
