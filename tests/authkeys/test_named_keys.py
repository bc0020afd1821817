"""Keys with a name: found by their text or their digest, refused from the second they expire."""

import json
import time
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from authkeys import key_format
from authkeys.access import Access
from authkeys.credentials import Reason
from authkeys.errors import NotPermittedError
from authkeys.keys import KeySet
from authkeys.principal import ALL_RIGHTS, Principal
from runtimeclient.errors import UsageError
from runtimeclient.http.api_keys import check_api_key, has_typing_error
from runtimeconf.model import DatasetRule, KeyLimits, NamedKey, Scope
from runtimeconf.secret import Secret

SALT = bytes(range(32))
KEY = "k1-Zq8vT3mN6bX9cL2pR5sW7yD0fG4hJ1aE"
RULE = DatasetRule(dataset="a", row_filter="id > 1", columns=("id", "b"), masks=(("b", "'x'"),), line=3, yaml_path="p")
SCOPE = Scope(relations=frozenset({"a"}), rules=(RULE,))
OTHER = "k2-Hn5tB8xQ1zV4kM7wC0rL3uP6jS9dF2gY"


def hashed(text: str, **fields: object) -> NamedKey:
    return NamedKey(name="dash", sha256=sha256(text.encode()).digest(), **fields)  # type: ignore[arg-type]


def test_a_key_is_found_by_its_digest_with_what_it_may_do() -> None:
    limits = KeyLimits(requests_per_minute=60, concurrent=2, timeout_s=5)
    expires = datetime(2999, 1, 1, tzinfo=UTC)
    named = hashed(KEY, expires_at=expires, scope=SCOPE, rights=frozenset({"refresh"}), limits=limits)
    keys = KeySet([Secret(OTHER)], SALT, [named])

    assert keys.find(KEY) == Principal(
        fingerprint=keys.fingerprints()[1],
        name="dash",
        expires_at=expires.timestamp(),
        scope=SCOPE,
        rights=frozenset({"refresh"}),
        limits=limits,
    )
    assert KeySet.from_handover(json.loads(json.dumps(keys.handover()))).find(KEY) == keys.find(KEY)


def test_a_key_and_its_digest_are_the_same_key_with_the_same_fingerprint() -> None:
    plain = KeySet([], SALT, [NamedKey(name="dash", key=Secret(KEY))])

    assert plain.find(KEY) == KeySet([], SALT, [hashed(KEY)]).find(KEY) != None  # noqa: E711
    assert plain.fingerprints() == KeySet([Secret(KEY)], SALT).fingerprints()


def test_the_digest_itself_is_no_key() -> None:
    digest = sha256(KEY.encode())
    keys = KeySet([], SALT, [hashed(KEY)])

    assert [keys.find(text) for text in (digest.hexdigest(), digest.digest().decode("latin-1"))] == [None, None]


def test_of_a_key_that_is_listed_twice_the_one_without_a_name_counts() -> None:
    keys = KeySet([Secret(KEY)], SALT, [hashed(KEY, scope=SCOPE)])

    assert len(keys) == 1
    caller = keys.find(KEY)
    assert caller is not None
    assert (caller.name, caller.scope, caller.rights) == ("", None, ALL_RIGHTS)


@pytest.mark.parametrize(("seconds", "expected"), [(-1, Reason.EXPIRED), (60, "dash")])
def test_an_expired_key_is_refused(seconds: int, expected: object) -> None:
    now = datetime.now(UTC)
    access = Access(key_set=KeySet([], SALT, [hashed(KEY, expires_at=now + timedelta(seconds=seconds))]))

    caller = access.authenticate(Secret(KEY))

    assert (caller.name if isinstance(caller, Principal) else caller) == expected


def test_a_key_expires_while_the_process_runs() -> None:
    expires = datetime.now(UTC) + timedelta(seconds=1)
    access = Access(key_set=KeySet([], SALT, [hashed(KEY, expires_at=expires)]))
    before = access.authenticate(Secret(KEY))
    while time.time() < expires.timestamp():
        time.sleep(0.01)

    assert isinstance(before, Principal)
    assert access.authenticate(Secret(KEY)) is Reason.EXPIRED


def test_what_a_caller_may_do() -> None:
    caller = Principal(fingerprint="f", scope=SCOPE, rights=frozenset({"query"}))

    assert [caller.may_name(name) for name in ("a", "A", "b")] == [True, True, False]
    assert Principal(fingerprint="f").may_name("b")
    assert [caller.rule_of("A"), caller.rule_of("b"), Principal(fingerprint="f").rule_of("a")] == [RULE, None, None]
    caller.require("query")
    with pytest.raises(NotPermittedError, match="is not allowed to refresh"):
        caller.require("refresh")


# The format of generated keys.


def test_generated_keys_are_distinct_and_well_formed() -> None:
    keys = {key_format.generate() for _ in range(1000)}

    assert len(keys) == 1000
    assert {len(key) for key in keys} == {42}
    assert not any(key_format.has_typing_error(key) for key in keys)


@given(st.data())
def test_a_typing_error_is_told(data: st.DataObject) -> None:
    key = key_format.generate()
    at = data.draw(st.integers(4, 41))
    character = data.draw(st.sampled_from("0123456789ABCXYZabcxyz-é"))
    for wrong in (key[:at] + character + key[at + 1 :], key[:at] + key[at + 1 :], key[:at] + character + key[at:]):
        assert key_format.has_typing_error(wrong) is has_typing_error(wrong) is (wrong != key)


def test_other_keys_have_no_typing_error() -> None:
    for key in ("", KEY, "qk2_abc", "QK1_abc", " qk1_"):
        assert key_format.has_typing_error(key) is has_typing_error(key) is False


def test_the_client_tells_a_typing_error_before_it_sends_the_key() -> None:
    key = key_format.generate()

    assert check_api_key(key, "in a test") == key
    with pytest.raises(UsageError, match="in a test has a typo"):
        check_api_key(key[:-1], "in a test")
