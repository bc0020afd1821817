"""`secrets`: the stores, and the faults of their settings."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from runtimeconf import store_schema
from runtimeconf.secret_stores import KeyringStore, SecretError
from tests.runtimeconf.configurations import KEY, Fault, Load, fault_cases, with_keys

FAULTS = """
{from: enf, name: a}
=> secrets[0].from: must be KIND; found a string (did you mean env?)
{from: canary, name: a}
=> secrets[0].from: must be KIND; found a string (no such store is installed)
{from: ':canary', name: a}
=> secrets[0].from: must be KIND; found a string (no such store is installed)
{from: '', name: a}
=> secrets[0].from: must be KIND; found a string (no such store is installed)
{from: 'canary:b/c', name: a}
=> secrets[0].from: must be KIND; found a string (no such store is installed)
# store of Spice.ai
{from: azure_keyvault, name: a}
=> secrets[0].from: must be KIND; found a string (ABSENT)
# a selector
{from: 'env:canary', name: a}
=> secrets[0].from: must be KIND; found a string (did you mean env?)
{from: env}
=> secrets[0]: lacks the field name: NAME
{name: a}
=> secrets[0]: lacks the field from: KIND
# reserved name
{from: env, name: secrets}
=> secrets[0].name: must be NAME; found a string (the name secrets is reserved for searching all stores)
{from: env, name: 'can ary'}
=> secrets[0].name: must be NAME; found a string
{from: env, name: 1}
=> secrets[0].name: must be NAME; found a number
# parameter of another store
{from: env, name: a, params: {directory: canary}}
=> secrets[0].params.directory: is not a parameter of the store env
{from: env, name: a, params: {file_path: canary}}
=> secrets[0].params: unknown field; the fields here are: PARAMS
{from: file, name: a}
=> secrets[0].params: lacks the field directory: set it to the directory with the secret files
# a file as directory
{from: file, name: a, params: {directory: runtime.yaml}}
=> secrets[0].params.directory: is not a directory
# keyring not installed
{from: keyring, name: a}
=> secrets[0].from: the keyring store needs the keyring package: python -m pip install 'keyring~=25.7'
{from: env, name: a, params: ~}
=> secrets[0].params: is empty: fill it in, or omit it
canary
=> secrets[0]: must be a mapping; found a string
{from: env, name: a, canary: x}
=> secrets[0]: unknown field; the fields here are: from, name, params
""".replace("NAME", "a store name of letters, digits, _ and -, starting with a letter")
FAULTS = (
    FAULTS.replace("KIND", store_schema._expected())
    .replace("ABSENT", "the store azure_keyvault is not supported: mount the secrets as files and write file")
    .replace("PARAMS", ", ".join(store_schema._PARAMS))
)


@pytest.mark.parametrize(("entry", "expected"), fault_cases(FAULTS))
def test_faults_of_a_secret_store(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, entry: str, expected: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)  # as if it were not installed
    # The reference is not a second fault: its store may be the invalid one.
    text = f"secrets:\n  - {entry}" + with_keys("- ${ secrets:x }")

    assert [fault(text)] == [f"2: {line}" for line in expected]


def test_two_stores_need_two_names(fault: Fault) -> None:
    assert fault("secrets:\n  - {from: env, name: a}\n  - {from: env, name: a}\n") == (
        "2: secrets: the store name a is used twice: each store needs its own"
    )


def test_listing_stores_replaces_the_default_one(fault: Fault) -> None:
    text = "secrets:\n  - {from: file, name: files, params: {directory: /nonexistent}}\n"

    assert fault(text + with_keys("- ${ env:x }"), {"X": KEY}).endswith(
        "refers to a secret store that is not configured; the stores are: secrets, files"
    )
    assert fault(text + with_keys("- ${ secrets:x }"), {"X": KEY}).endswith(
        "not found; stores searched: files (tried: the file /nonexistent/x (no such directory))"
    )
    assert fault("secrets: []\n" + with_keys("- ${ secrets:x }"), {"X": KEY}).endswith(
        "not found; stores searched: none"
    )


def test_the_keyring_is_a_store_where_its_package_is_installed(
    load_text: Load, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_password(service: str, name: str) -> str | bytes | None:
        if name == "locked":
            raise RuntimeError("canary")
        if name == "bytes":
            return b"canary"
        return {("runtime", "x"): KEY, ("mine", "y"): f"{KEY}-mine"}.get((service, name))

    keyring = ModuleType("keyring")
    keyring.__spec__ = ModuleSpec("keyring", None)
    vars(keyring)["get_password"] = get_password
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    with pytest.raises(SecretError) as caught:
        KeyringStore("k", "runtime").get("locked")
    assert caught.value.__context__ is None  # which may hold the secret
    text = "secrets: [{from: keyring, name: k}, {from: keyring, name: m, params: {service: mine}}]\n"

    config = load_text(text + with_keys("- ${ secrets:x }\n- ${ m:y }"))

    assert [key.reveal() for key in config.auth.keys] == [KEY, f"{KEY}-mine"]
    assert fault(text + with_keys("- ${ k:locked }")).endswith(
        ": secret 'locked' in store k: the keyring does not respond (RuntimeError); "
        "is a backend installed and unlocked?"
    )
    assert fault(text + with_keys("- ${ k:bytes }")).endswith("the keyring returned something other than text")


def test_a_directory_of_secrets_with_an_impossible_name_has_no_secrets(fault: Fault) -> None:
    text = f"secrets: [{{from: file, name: files, params: {{directory: {'d' * 300}}}}}]\n"

    assert "secret 'x' in store files: its file cannot be read: file name too long" in fault(
        text + with_keys("- ${ secrets:x }")
    )


def test_the_order_of_sections_does_not_matter(load_text: Load, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(KEY)
    text = with_keys("- ${ files:x }") + "secrets:\n  - {from: file, name: files, params: {directory: .}}\n"

    assert [key.reveal() for key in load_text(text).auth.keys] == [KEY]


def test_the_one_store_of_old_spicepods_is_the_default(load_text: Load) -> None:
    config = load_text("secrets: {store: env}\n" + with_keys("- ${ secrets:api_key }"), {"API_KEY": KEY})

    assert config.auth.keys[0].reveal() == KEY
    assert "1 field differs in meaning from Spice" in config.warnings[-1] + config.warnings[0]


@pytest.mark.parametrize("text", ["{store: file}", "{store: env, name: env}", "{store: [env]}", "{from: env}", "{}"])
def test_no_other_mapping_is_a_list_of_stores(fault: Fault, text: str) -> None:
    assert fault(f"secrets: {text}\n").startswith("1: secrets: ")
