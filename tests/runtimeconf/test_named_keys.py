"""`named_keys`: a name, a digest or a text, and what the key may do. No fault shows a value."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeconf.fields import InvalidValueError
from runtimeconf.model import DatasetRule, KeyLimits, NamedKey, RuntimeConfig, Scope
from runtimeconf.named_keys import EXPRESSION, ExpiryField
from runtimeconf.yaml_nodes import Scalar
from tests.runtimeconf.configurations import KEY, Faults, Load, fault_cases

OTHER = "k2-Hn5tB8xQ1zV4kM7wC0rL3uP6jS9dF2gY"
DIGEST = sha256(KEY.encode()).hexdigest()
HEAD = "runtime: {auth: {api-key: {enabled: true, named_keys: [\n"
TAIL = "]}}}\ndatasets: [{name: Flights, from: 'file:x.csv'}]\nviews: [{name: late, sql: SELECT 1}]\n"


def named(items: str, keys: str = "") -> str:
    """Return a configuration with *items*, which begin on line 2, a dataset and a view."""
    head = HEAD.replace("named_keys", f"keys: [{keys}], named_keys") if keys else HEAD
    return head + items + TAIL


def sentences(config: RuntimeConfig) -> list[str]:
    return [warning.partition("runtime.yaml:")[2] for warning in config.warnings if "named_keys" in warning]


def test_everything_that_a_named_key_can_say(load_text: Load) -> None:
    config = load_text(
        named(
            f"{{name: dash-1, sha256: {DIGEST.upper()}, expires: 2999-12-31T12:00:00+02:00, datasets: [FLIGHTS],"
            " rights: [refresh, query], limits: {requests_per_minute: 600, concurrent: 4, timeout: 5s}},\n"
            "{name: plain, key: '${ secrets:api_key }'}"
        ),
        {"API_KEY": OTHER},
    )

    dash, plain = config.auth.named_keys
    assert dash == NamedKey(
        name="dash-1",
        sha256=sha256(KEY.encode()).digest(),
        expires_at=datetime(2999, 12, 31, 10, tzinfo=UTC),
        scope=Scope(relations=frozenset({"flights"})),
        rights=frozenset({"query", "refresh"}),
        limits=KeyLimits(requests_per_minute=600, concurrent=4, timeout_s=5.0),
    )
    assert plain.key is not None
    assert plain.key.reveal() == OTHER
    assert plain == NamedKey(name="plain", key=plain.key)
    assert DIGEST not in repr(config).lower()
    assert OTHER not in repr(config)


def test_rules_of_a_dataset(load_text: Load) -> None:
    config = load_text(
        named(
            f"{{name: a, sha256: {DIGEST}, datasets: [late,\n{{name: FLIGHTS, row_filter: \"tenant = 'acme'\","
            " columns: [ID, Email], masks: {email: 'NULL', id: id % 10}}]}"
        )
    )

    (key,) = config.auth.named_keys
    rule = DatasetRule(
        dataset="flights",
        row_filter="tenant = 'acme'",
        columns=("ID", "Email"),
        masks=(("email", "NULL"), ("id", "id % 10")),
    )
    assert key.scope == Scope(relations=frozenset({"flights", "late"}), rules=(rule,))
    assert key.scope.rules[0].line == 3
    assert key.scope.rules[0].yaml_path == "runtime.auth.api-key.named_keys[0].datasets[1]"


EXPIRES = "must be a date such as 2027-03-31, or a date and time such as 2027-03-31T12:00:00Z"
SHA256 = "must be the SHA-256 of a key, 64 hexadecimal digits, as `apikey create` prints it"

FAULTS = f"""
# neither key nor sha256
{{name: a}}
=> named_keys[0]: has neither key nor sha256: write one of them
# both
{{name: a, key: {KEY}, sha256: {DIGEST}}}
=> named_keys[0]: has both key and sha256: write one of them
# digest too short
{{name: a, sha256: {DIGEST[:-1]}}}
=> named_keys[0].sha256: {SHA256}; found a string
# the digest of an empty text
{{name: a, sha256: {sha256().hexdigest()}}}
=> named_keys[0].sha256: {SHA256}; found a string (this is the digest of an empty string, which no client can send)
# a name twice
{{name: a, key: {KEY}}}, {{name: a, sha256: {"0" * 64}}}
=> named_keys[1].name: is also the name of the key on line 2: names must be unique
# a key twice
{{name: a, key: {KEY}}},\n{{name: b, sha256: {DIGEST.upper()}, datasets: [flights]}}
=> named_keys[1]: is the same key as the one on line 2: each entry needs its own key
# an expiry that is no date
{{name: a, key: {KEY}, expires: 2027-02-30}}
=> named_keys[0].expires: {EXPIRES}; found a string (no such date or time)
# an expiry that is out of range
{{name: a, key: {KEY}, expires: 9999-12-31}}
=> named_keys[0].expires: {EXPIRES}; found a string (it is too far in the future: omit it for a key that never expires)
# a mapping without a rule
{{name: a, key: {KEY}, datasets: [{{name: flights}}]}}
=> named_keys[0].datasets[0]: has no row_filter, columns or masks: to allow a whole dataset, list only its name
# a misspelt rule
{{name: a, key: {KEY}, datasets: [{{name: flights, rowfilter: x}}]}}
=> named_keys[0].datasets[0].rowfilter: unknown field; did you mean row_filter?
=> named_keys[0].datasets[0]: has no row_filter, columns or masks: to allow a whole dataset, list only its name
# empty rules
{{name: a, key: {KEY}, datasets: [{{name: flights, row_filter: , columns: [], masks: {{}}}}]}}
=> named_keys[0].datasets[0].row_filter: is empty: it must be {EXPRESSION.expected}, or be omitted
=> named_keys[0].datasets[0].columns: is an empty list: list at least 1, or omit the field
=> named_keys[0].datasets[0].masks: is empty: fill it in, or omit it
# a column twice, a mask of a column that is not listed
{{name: a, key: {KEY}, datasets: [{{name: flights, columns: [id, ID], masks: {{b: 'NULL'}}}}]}}
=> named_keys[0].datasets[0].columns: lists a column twice: id
=> named_keys[0].datasets[0].masks: masks a column that is not among columns: b
# a dataset twice
{{name: a, key: {KEY}, datasets: [flights, {{name: Flights, columns: [id]}}]}}
=> named_keys[0].datasets: lists a dataset twice, so the key would see it in two ways
# a rule of nothing
{{name: a, key: {KEY}, datasets: [{{name: nowhere, columns: [id]}}]}}
=> named_keys[0].datasets[0]: is not the name of a declared dataset
# unknown dataset
{{name: a, key: {KEY}, datasets: [flights, nowhere, LATE]}}
=> named_keys[0].datasets[1]: is not the name of a declared dataset
# empty lists
{{name: a, key: {KEY}, datasets: [], rights: []}}
=> named_keys[0].datasets: is an empty list: list at least 1, or omit the field
=> named_keys[0].rights: is an empty list: list at least 1, or omit the field
# all have expired
{{name: a, key: {KEY}, expires: 2001-01-01}}
=> named_keys: has no usable keys: all of them have expired
"""


def test_a_named_key_that_is_also_a_string_key_is_a_fault(faults: Faults) -> None:
    (fault,) = faults(named(f"{{name: a, sha256: {DIGEST}, datasets: [flights]}}", keys=KEY))

    assert fault.message == "is the same key as an item of keys on line 1: each entry needs its own key"


@pytest.mark.parametrize(("items", "expected"), fault_cases(FAULTS))
def test_faults(faults: Faults, items: str, expected: list[str]) -> None:
    found = [f"{fault.yaml_path}: {fault.message}" for fault in faults(named(items))]

    assert found == [f"runtime.auth.api-key.{line}" for line in expected]
    assert not any(secret in sentence for sentence in found for secret in (KEY, DIGEST, DIGEST[:-1]))


def test_keys_that_expire_soon_or_have_expired_are_warned_of(load_text: Load) -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(days=13)
    config = load_text(
        named(
            f"{{name: a, key: {OTHER}, expires: 2001-01-01}},\n"
            f"{{name: b, sha256: {DIGEST}, expires: {soon:%Y-%m-%dT%H:%M:%S}}},\n"
            f"{{name: c, sha256: {'0' * 64}, expires: {soon + timedelta(days=2):%Y-%m-%d}}}"
        )
    )

    at = "runtime.auth.api-key.named_keys"
    assert sentences(config) == [
        f"2: {at}[0].expires: expired at 2001-01-02T00:00:00Z: this key can no longer be used",
        f"3: {at}[1].expires: expires at {soon:%Y-%m-%dT%H:%M:%SZ}",
    ]


def test_a_literal_key_that_others_may_read_is_warned_of_where_it_stands(load_text: Load) -> None:
    config = load_text(named(f"{{name: a, key: {OTHER}}}", keys="'${ env:HOME }'"), {"HOME": KEY}, mode=0o644)

    assert [one.partition(":")[0] for one in sentences(config)] == ["2"]


@pytest.mark.exhaustive
def test_10_000_keys_with_all_fields_are_not_too_many(load_text: Load) -> None:
    limits = "{requests_per_minute: 60, concurrent: 4, timeout: 5s}"
    fields = f"expires: 2999-01-01, datasets: [flights], rights: [query], limits: {limits}"
    items = ",\n".join(f"{{name: k{n}, sha256: {n:064}, {fields}}}" for n in range(10_000))

    assert len(load_text(named(items)).auth.named_keys) == 10_000


def test_an_expired_key_beside_a_string_key_is_no_fault(load_text: Load) -> None:
    config = load_text(named(f"{{name: a, sha256: {DIGEST}, expires: 2001-01-01}}", keys="'another-long-key-4711'"))

    assert len(config.auth.keys) == len(config.auth.named_keys) == 1


def test_keys_that_are_off_are_not_resolved(load_text: Load) -> None:
    config = load_text(named("{name: a, key: '${ secrets:missing }'}").replace("enabled: true", "enabled: false"))

    assert config.auth.named_keys == ()


@given(seconds=st.integers(-(10**9), 10**10), hours=st.integers(-12, 14))
def test_a_moment_is_read_as_it_is_meant(seconds: int, hours: int) -> None:
    written = (datetime.fromtimestamp(0, UTC) + timedelta(seconds=seconds)).replace(tzinfo=None)
    offset = f"{'-' if hours < 0 else '+'}{abs(hours):02}:00"
    read = ExpiryField().convert(Scalar(1, f"{written.isoformat()}{offset}", is_plain=True))

    assert read == written.replace(tzinfo=UTC) - timedelta(hours=hours)


@given(text=st.text(max_size=40))
def test_any_text_is_a_moment_or_refused(text: str) -> None:
    with suppress(InvalidValueError):
        assert ExpiryField().convert(Scalar(1, text, is_plain=True)).tzinfo is UTC
