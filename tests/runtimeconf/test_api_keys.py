"""API keys: the source text is the key, an invalid key is a fault, a weak one a warning, and none is shown."""

import json
import pickle
import time
from pathlib import Path

import pytest

from runtimeconf.key_texts import MAX_LENGTH, is_trivial
from runtimeconf.model import AuthConfig, RuntimeConfig
from runtimeconf.secret import Secret
from tests.corpus import each
from tests.runtimeconf.configurations import KEY, Fault, Faults, Load, env_places, with_keys

KEYS = "runtime.auth.api-key.keys"


def revealed(config: RuntimeConfig) -> list[str]:
    return [key.reveal() for key in config.auth.keys]


def sentences(config: RuntimeConfig) -> list[str]:
    """Return the warnings without the file."""
    return [warning.removeprefix(f"{config.file}:") for warning in config.warnings]


@pytest.mark.parametrize("name", ["api-key", "api_key"])
def test_c01_c02_literals_and_references_in_order(load_text: Load, name: str) -> None:
    text = with_keys(f"- ${{ secrets:api_key }}\n- {KEY}").replace("api-key", name)

    config = load_text(text, {"API_KEY": "from-the-environment"})

    assert config.auth.enabled
    assert revealed(config) == ["from-the-environment", KEY]
    assert config.warnings == ()


NO_KEY = "has no keys, but enabled is true: list at least one"
NO_LIST = "must be a list, with one item per line after a dash; found"
NULL_LIST = "is empty: it must be a list, with one item per line after a dash, or be omitted"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param("{enabled: true, keys: []}", f".keys: {NO_KEY}", id="C05 empty list"),
        pytest.param("{enabled: true}", f".keys: {NO_KEY}", id="C05 no list"),
        pytest.param("{enabled: true, keys: }", f".keys: {NULL_LIST}", id="C05 null list"),
        pytest.param("{enabled: true, keys: ~}", f".keys: {NULL_LIST}", id="C05 ~ list"),
        pytest.param("{enabled: true, keys: null}", f".keys: {NULL_LIST}", id="C05 null by name"),
        pytest.param("{enabled: true, keys: canary}", f".keys: {NO_LIST} a string", id="C11 a text"),
        pytest.param("{enabled: true, keys: 12345}", f".keys: {NO_LIST} a number", id="C11 a number"),
        pytest.param("{enabled: true, keys: true}", f".keys: {NO_LIST} true or false", id="C11 a boolean"),
        pytest.param(
            "{enabled: true, keys: '${ secrets:canary }'}", f".keys: {NO_LIST} a string", id="C11 a reference"
        ),
        pytest.param("{enabled: true, keys: {canary: canary}}", f".keys: {NO_LIST} a mapping", id="C11 a mapping"),
        pytest.param(f"{{keys: [{KEY}]}}", ": lacks the field enabled: true or false", id="C22 no enabled"),
        pytest.param(
            f"{{enabled: true, keys: [{KEY}], enabled: false}}",
            ".enabled: duplicate field: first on line 1, again on line 1",
            id="C20 enabled twice",
        ),
        pytest.param(
            f"{{enabled: true, keys: [{KEY}]}}, api_key: {{enabled: false}}",
            ": api-key on line 1 and api_key on line 1 are the same field: remove one",
            id="C02 both spellings",
        ),
        pytest.param(
            '{enabled: true, keys: ["${ secrets:missing }"]}',
            ".keys[0]: secret 'missing' was not found; stores searched: env (tried: PLACES)",
            id="C07 missing secret",
        ),
    ],
)
def test_faults_of_the_block(fault: Fault, yaml_file: Path, settings: str, expected: str) -> None:
    expected = expected.replace("PLACES", env_places(yaml_file.parent, "missing"))

    assert fault(f"runtime: {{auth: {{api-key: {settings}}}}}\n") == f"1: runtime.auth.api-key{expected}"


#: Scalars that YAML readers turn into other values, or that only look special.
UNCHANGED = [
    *("1234567890", "0123", "0o17", "0x1F", "1_000", "1:30", "1.10", "1e3", "+12", ".inf", "9" * 4000),
    *("yes", "on", "true", "NO", "2024-01-01", "2024-01-01 10:00:00", "nullable"),
    *("a#b", "a:b", "a b", "<<", "=", f"{KEY}:rw"),
]


@each(
    ("written", "key"),
    [
        *(pytest.param(text, text, id=f"C14 {text[:20]}") for text in UNCHANGED),
        pytest.param("'0123'", "0123", id="quoted"),
        pytest.param('"a\\x62c"', "abc", id="an escape"),
        pytest.param("abc # comment", "abc", id="a comment"),
        pytest.param("a${ env:x }b", "avalueb", id="text around a reference"),
        pytest.param("${ env:x }${ env:x }", "valuevalue", id="two references"),
        pytest.param("${ env:x }:ro", "value:ro", id="a suffix after a reference"),
        pytest.param("${ env:braces }", "${ env:x }", id="a value that looks like a reference"),
        pytest.param("|-\n  abc", "abc", id="a block without its line break"),
    ],
)
def test_c14_a_key_is_its_source_text(load_text: Load, written: str, key: str) -> None:
    config = load_text(with_keys(f"- {written}"), {"X": "value", "BRACES": "${ env:x }"})

    assert revealed(config) == [key]


@each("item", ["", "~", "null", "Null", "NULL", "''", '""', "'   '", '" \\t "', "'null'", '"~"', "'Null '", "nUlL"])
@pytest.mark.parametrize("others", [pytest.param("", id="alone"), pytest.param(f"\n- {KEY}", id="beside another")])
def test_c06_an_empty_blank_or_null_item_is_a_fault(fault: Fault, item: str, others: str) -> None:
    assert fault(with_keys(f"- {item}{others}")).startswith(f"6: {KEYS}[0]: is empty, blank or null: write a key")


@each(
    "item",
    [
        *("${secrets:}", "${ secret:x }", "${unknown:x}", "${ secrets:x", "$ {secrets:x}", "${}", "'${{ secrets:x }}'"),
        *("'{ secrets:x }'", "$secrets:x", "secrets:x", "${ secrets: x }", "a ${ secrets:x"),
    ],
)
def test_c09_a_reference_with_an_error_never_authenticates_as_text(faults: Faults, item: str) -> None:
    found = faults(with_keys(f"- {item}\n- {KEY}"), {"X": "value"})

    assert len(found) == 1
    assert found[0].line == 6


@pytest.mark.parametrize("item", ["[canary]", "{canary: canary}", "canary: canary", "- canary"])
def test_c11_an_item_must_be_a_single_value(fault: Fault, item: str) -> None:
    message = fault(with_keys(f"- {item}"))

    assert message.startswith(f"6: {KEYS}[0]: must be a key or a secret reference such as")
    assert "canary" not in message


UNSENDABLE = {
    "canary,canary": "contains a comma",
    "cänäry": "contains a non-ASCII character",
    " canary": "begins or ends with a space",
    "canary ": "begins or ends with a space",
    "can\tary": "contains a control character",
    "canary\x7f": "contains a control character",
    "canary\x1b": "contains a control character",
    "canary\n": "contains a control character, perhaps a trailing line break",
    "c" * (MAX_LENGTH + 1): "is longer than 4,096 characters",
}
UNSENDABLE_SECRETS = UNSENDABLE | {"   ": "is blank", "\udce9": "contains a non-ASCII character"}


@each(
    ("item", "value", "enabled"),
    [
        *((json.dumps(value), value, enabled) for value in UNSENDABLE for enabled in ("true", "false")),
        ("|\n  canary", "canary\n", "true"),
        *(("${ secrets:x }", value, "true") for value in UNSENDABLE_SECRETS),
    ],
)
def test_a_key_that_cannot_be_sent_is_a_fault(fault: Fault, item: str, value: str, enabled: str) -> None:
    found = fault(with_keys(f"- {item}", enabled=enabled), {"X": value})

    assert found.startswith(f"6: {KEYS}[0]: {UNSENDABLE_SECRETS[value]}")
    assert found.endswith("such a key cannot be sent as a single header value")
    assert "canary" not in found


@each("enabled", ['"false"', '"true"', "1", "0", "ture", '""', "yes", "on", "[true]", "{}"])
def test_c22_enabled_must_be_a_boolean(fault: Fault, enabled: str) -> None:
    assert fault(with_keys(f"- {KEY}", enabled=enabled)).startswith(
        "4: runtime.auth.api-key.enabled: must be true or false; found "
    )


def test_while_off_no_secret_is_read_and_no_key_is_kept(load_text: Load) -> None:
    assert load_text(with_keys("- ${ secrets:missing }", enabled="false")).auth == AuthConfig(allows_anybody=True)
    assert load_text("runtime: {auth: {api-key: {enabled: false}}}\n").auth == AuthConfig(allows_anybody=True)
    assert load_text("runtime: {auth: {api-key: {enabled: false, keys: []}}}\n").auth == AuthConfig(allows_anybody=True)


@pytest.mark.parametrize("item", ["", "${secrets:}", "[a]"])
def test_while_off_keys_must_still_be_well_formed(fault: Fault, item: str) -> None:
    assert fault(with_keys(f"- {item}", enabled="false")).startswith(f"6: {KEYS}[0]: ")


def test_all_keys_at_fault_are_named_at_once(faults: Faults) -> None:
    found = faults(with_keys("- ''\n- ${ secrets:missing }\n- a,b\n- ${x}\n- [a]"))

    assert [fault.yaml_path for fault in found] == [f"{KEYS}[{index}]" for index in range(5)]


@each(
    ("text", "start"),
    [
        pytest.param("runtime:\n  auth:\n", "2: runtime.auth: is empty", id="auth null"),
        pytest.param("runtime:\n  auth: {}\n", "2: runtime.auth: is empty", id="auth {}"),
        pytest.param("runtime:\n  auth: ~\n", "2: runtime.auth: is empty", id="auth ~"),
        pytest.param("runtime:\n  auth: []\n", "2: runtime.auth: must be a mapping; found a list", id="auth []"),
        pytest.param(
            "runtime:\n  auth: canary\n", "2: runtime.auth: must be a mapping; found a string", id="auth text"
        ),
        pytest.param("runtime:\n  auth:\n    api-key:\n", "3: runtime.auth.api-key: is empty", id="api-key null"),
        pytest.param("runtime:\n  auth:\n    api-key: {}\n", "3: runtime.auth.api-key: is empty", id="api-key {}"),
        pytest.param("runtime:\n  auth:\n    api_key:\n", "3: runtime.auth.api_key: is empty", id="api_key null"),
        pytest.param("runtime:\n  auth: {api-key: true}\n", "2: runtime.auth.api-key: must be a mapping", id="boolean"),
        pytest.param(
            "auth:\n  api-key: {enabled: true, keys: [canary]}\n",
            "1: auth: unknown field; did you mean runtime.auth?",
            id="C04 at the root",
        ),
        pytest.param(
            "api-key: {enabled: true, keys: [canary]}\n",
            "1: api-key: unknown field; did you mean runtime.auth.api-key?",
            id="C04 deeper, at the root",
        ),
        pytest.param(
            "runtime:\n  api_key: {enabled: true, keys: [canary]}\n",
            "2: runtime.api_key: unknown field; did you mean runtime.auth.api-key?",
            id="C04 one level too high",
        ),
        pytest.param(
            "runtime:\n  Auth: {api-key: {enabled: true, keys: [canary]}}\n",
            "2: runtime.Auth: unknown field; did you mean auth?",
            id="in another case",
        ),
    ],
)
def test_a_block_that_would_leave_the_runtime_open_is_a_fault(fault: Fault, text: str, start: str) -> None:
    message = fault(text)

    assert message.startswith(start)
    assert "canary" not in message


def test_unknown_names_below_auth_are_shown_only_when_close_to_known_ones(faults: Faults) -> None:
    text = with_keys(f"- {KEY}") + "      keyz: [a]\n      canary-123: x\n    oidc: {}\n    apikey: {}\n"

    assert [f"{fault.line}: {fault.yaml_path}: {fault.message}" for fault in faults(text)] == [
        "7: runtime.auth.api-key.keyz: unknown field; did you mean keys?",
        "8: runtime.auth.api-key: unknown field; the fields here are: enabled, keys, named_keys",
        "9: runtime.auth: unknown field; the fields here are: api-key",
        "10: runtime.auth.apikey: unknown field; did you mean api-key?",
    ]


SHORT = "is shorter than 16 characters, so it can be guessed"
TRIVIAL = "is a common word, a sequence or a repetition, so it can be guessed"
SUFFIX = "ends with :ro or :rw, which is part of the key here and does not grant or deny anything"
INSTEAD = (
    "Spice strips the suffix: a key with :rw can also write and refresh, and any other key can only read. Here, add "
    "the key without the suffix to named_keys, with rights: [query] or rights: [query, refresh]"
)
LITERAL = "is a literal key, but other users can read the file: chmod 600 it, or use a secret reference"


@each(
    ("items", "mode", "expected"),
    [
        (
            f"- {KEY}\n- ${{ secrets:x }}\n- {KEY}",
            0o600,
            [f"{n + 6}: {KEYS}[{n}]: is the same key as keys[0]" for n in (1, 2)],
        ),
        *((f"- {key}", 0o600, [f"6: {KEYS}[0]: {SHORT}"]) for key in ("a1B2c3D4e5F6g7H", "Zq7")),
        *(
            (f"- {key}", 0o600, [f"6: {KEYS}[0]: {TRIVIAL}"])
            for key in ("passwordpassword", "a" * 16, "my-super-secret-api-key", "abababababababababab")
        ),
        *(
            (
                f"- {KEY}{end}\n- ${{ env:x }}2{end}\n- ${{ env:{name} }}",
                0o600,
                [*(f"{n + 6}: {KEYS}[{n}]: {SUFFIX}. {INSTEAD}" for n in range(2)), f"8: {KEYS}[2]: {SUFFIX}"],
            )
            for name, end in (("ro", ":ro"), ("rw", ":rw"))
        ),
        *(
            (f"- {KEY}\n- ${{ env:x }}3\n- {KEY}2", mode, [f"{n + 6}: {KEYS}[{n}]: {LITERAL}" for n in (0, 2)])
            for mode in (0o644, 0o640, 0o604)
        ),
        ("- ${ env:x }", 0o644, []),
    ],
)
def test_c25_c26_c29_keys_that_work_but_are_weak_are_warned_about_by_index(
    load_text: Load, items: str, mode: int, expected: list[str]
) -> None:
    environ = {"X": KEY, "RO": f"{KEY}3:ro", "RW": f"{KEY}3:rw"}

    assert sentences(load_text(with_keys(items), environ, mode)) == expected


COMMON = (
    *("password", "Password1", "PASSW0RD", "changeme", "change-me!", "your-api-key-here", "querykeep", "admin123456"),
    *("1234567890", "abcdefghijkl", "qwertyuiop", "0987654321", "aaaa", "aAaA", "x1y2x1y2x1y2", "test_key_123"),
)
UNCOMMON = (
    *(KEY, "key-8471638471638471", "correct horse battery staple", "9f86d081884c7d65", "Zk3vT9qLZk3vT9qL"),
    "testimony-x",
)


@each("text", [*COMMON, *UNCOMMON])
def test_c26_common_keys_are_trivial(text: str) -> None:
    assert is_trivial(text) is (text in COMMON)


@pytest.mark.parametrize("text", ["pass" * 1000 + "!x", "xxx" * 1300 + "!a", "keyskey" * 500 + "?z"])
def test_c26_a_hostile_key_costs_no_time(text: str) -> None:
    begin = time.process_time()

    assert not is_trivial(text)
    assert time.process_time() - begin < 30


def test_a_dotenv_file_that_others_can_read_is_one_warning(load_text: Load, yaml_file: Path) -> None:
    dotenv = yaml_file.with_name(".env")
    dotenv.write_text(f"X={KEY}\nY={KEY}2\n")
    dotenv.chmod(0o644)

    config = load_text(with_keys("- ${ env:x }\n- ${ secrets:y }"))

    assert config.warnings == (f"{dotenv}: contains a secret in use, but other users can read it",)


def test_10_000_keys_load_in_time_and_their_warnings_are_counted(load_text: Load) -> None:
    begin = time.process_time()

    config = load_text(with_keys("".join(f"- k{n}\n" for n in range(10_000))))

    assert time.process_time() - begin < 30
    assert len(config.auth.keys) == 10_000
    assert sentences(config)[:21:20] == [f"6: {KEYS}[0]: {SHORT}", f" 9980 more like this: {SHORT}"]


def test_c33_a_secret_does_not_print_pickle_or_hash() -> None:
    secret = Secret("canary")

    assert secret.reveal() == "canary"
    assert "canary" not in f"{secret} {secret!r} {AuthConfig(enabled=True, keys=(secret,))}"
    assert secret == Secret("canary")
    assert secret not in (Secret("other"), "canary")
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(secret)
    with pytest.raises(TypeError, match="unhashable"):
        hash(secret)
