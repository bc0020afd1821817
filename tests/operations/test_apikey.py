"""`apikey`: keys are made, listed and checked without a runtime, and nothing but `create` prints one."""

import io
import json
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from authkeys import key_format, last_use, salt
from authkeys.keys import KeySet
from runtimeclient.http.api_keys import has_typing_error
from runtimeconf.secret import Secret
from system.state_directory import prepare_state_dir
from tests.runtimeclient.calling import Called, call
from tests.runtimeclient.conftest import run_python
from tests.system.harness import K1, K2, WRONG


def configured(directory: Path, *entries: object, **auth: object) -> Path:
    """Write a YAML with K1, named keys and a dataset; return it."""
    key = {"enabled": True, "keys": [K1], **({"named_keys": list(entries)} if entries else {}), **auth}
    (directory / "orders.csv").write_text("id\n1\n")
    content = {"runtime": {"auth": {"api-key": key}}, "datasets": [{"from": "file:orders.csv", "name": "orders"}]}
    file = directory / "runtime.yaml"
    file.write_text(yaml.safe_dump(content))
    file.chmod(0o600)
    return file


def check(file: Path, text: str) -> Called:
    return call("apikey", "check", "--config", str(file), stdin=io.StringIO(text))


def test_a_new_key_is_printed_once_and_its_entry_opens_the_runtime(tmp_path: Path) -> None:
    limits = ("--requests-per-minute=600", "--concurrent", "4", "--timeout=1.5m")
    rights = ("--datasets", "orders", "--rights=query,refresh")
    made = call("apikey", "create", "dashboard", "--expires=90d", *rights, *limits)

    key = made.out.removesuffix("\n")
    assert re.fullmatch(key_format.PATTERN, key)
    assert key not in made.err
    assert "named_keys, and run querykeep reload. The key is shown only once:\n" in made.err
    (entry,) = yaml.safe_load(made.err.partition("\n")[2])
    assert entry["sha256"] == sha256(key.encode()).hexdigest()
    assert (entry["datasets"], entry["rights"]) == (["orders"], ["query", "refresh"])
    assert abs(entry["expires"] - datetime.now(UTC) - timedelta(days=90)) < timedelta(minutes=2)
    assert entry["limits"] == {"requests_per_minute": 600, "concurrent": 4, "timeout": "1.5m"}
    entry["expires"] = entry["expires"].isoformat()
    assert check(configured(tmp_path, entry), f"{key}\r\n").out.startswith("dashboard, fingerprint ")
    assert call("apikey", "create", "dashboard").out != made.out


def test_a_key_for_some_rows_is_made(tmp_path: Path) -> None:
    sql = """tenant = 'acme' AND "Note" <> 'a=b'"""
    made = call("apikey", "create", "acme", "--datasets=flights,orders", "--rows", f"Orders={sql}")

    (entry,) = yaml.safe_load(made.err.partition("\n")[2])
    assert entry["datasets"] == ["flights", {"name": "orders", "row_filter": sql}]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("create", 2, "create needs the name of the new key; list and check take no name."),
        ("list dashboard", 2, "create needs the name of the new key; list and check take no name."),
        ("create Dash", 2, "NAME must be a name of 1 to 40 characters (a-z, 0-9 and -)"),
        ("create a --rights admin", 2, "Each of --rights must be query or refresh."),
        ("create a --expires=soon", 2, "--expires must be a period such as 90d, a date such as"),
        ("create a --expires=2027-02-30", 2, "(no such date or time)"),
        ("create a --expires=", 2, "--expires must be a period such as 90d, a date such as"),
        ("create a --expires=2001-01-01", 2, "--expires is in the past."),
        ("create a --datasets=", 2, "--datasets is empty: omit it to use the default."),
        ("create a --rows orders", 2, "--rows must be DATASET=SQL, where the SQL"),
        ("create a --rows orders=", 2, "--rows must be DATASET=SQL, where the SQL"),
        ("create a --rows o=a --rows p=b --rows O=c", 2, "--rows has a filter for o twice: join the conditions with"),
        ("list --rows orders=x", 2, "list does not accept --rows."),
        ("create a --rights=,", 2, "--rights is empty: omit it to use the default."),
        ("create a --datasets=a,b]", 2, "Each of --datasets must be a name of letters, digits and _"),
        ("create a --datasets=main", 2, "(the engine reserves this name)"),
        ("create a --requests-per-minute=0", 2, "--requests-per-minute must be a whole number from 1 to 1000000."),
        ("create a --concurrent=many", 2, "--concurrent must be a whole number from 1 to 10000."),
        ("create a --timeout=5", 2, "--timeout must be a duration such as 30s"),
        ("create a --timeout=", 2, "--timeout must be a duration such as 30s"),
        ("list --requests-per-minute=1", 2, "list does not accept --requests-per-minute."),
        ("create a --config=runtime.yaml", 2, "create does not accept --config."),
        ("list --expires=90d", 2, "list does not accept --expires."),
        ("check --rights=query", 2, "check does not accept --rights."),
        ("list --config nowhere.yaml", 2, "nowhere.yaml"),
        ("remove a", 2, "invalid choice"),
    ],
)
def test_wrong_arguments_are_told(arguments: str, status: int, message: str) -> None:
    done = call("apikey", *arguments.split())

    assert (done.status, done.out) == (status, "")
    assert message in done.err


def test_keys_are_listed_with_their_last_use(tmp_path: Path) -> None:
    named: Mapping[str, object] = {
        "name": "dashboard",
        "sha256": sha256(K2.encode()).hexdigest(),
        "expires": "2999-12-31",
        "datasets": [{"name": "Orders", "row_filter": "tenant = 'acme'", "columns": ["id"]}],
    }
    file = configured(tmp_path, named)
    state_dir = tmp_path / ".runtime"

    before = json.loads(call("apikey", "list", "--config", str(file), "--format=json").out)
    prepare_state_dir(state_dir)
    caller = KeySet([Secret(K2)], salt.load_or_create(state_dir)).principals()[0]
    uses = last_use.LastUse(state_dir)
    uses.note(caller.fingerprint)
    uses.write()
    after = json.loads(call("apikey", "list", "--config", str(file), "--format=json").out)

    assert [item["last_use"] for item in before] == [None, None]
    assert after[0]["name"] == "keys[0]"
    assert after[0]["rights"] == ["query", "refresh"]
    assert after[1]["fingerprint"] == caller.fingerprint
    assert datetime.fromisoformat(after[1].pop("last_use")).timestamp() == pytest.approx(time.time(), abs=60)
    assert after[1] | {"fingerprint": ""} == {
        "name": "dashboard",
        "fingerprint": "",
        "expires": "3000-01-01T00:00:00.000Z",
        "expired": False,
        "datasets": ["orders"],
        "rules": {"orders": {"row_filter": "tenant = 'acme'", "columns": ["id"]}},
        "rights": ["query"],
        "limits": {},
    }
    table = call("apikey", "list", environ={"RUNTIME_CONFIG": str(file)})
    assert table.status == 0
    rules = "orders: rows tenant = 'acme', columns id"
    assert re.search(rf"dashboard +\| +\w{{12}} +\| 3000-01-01T00:00:00.000Z \| orders +\| {rules} \| query", table.out)
    assert K1 not in table.out


def test_the_list_shows_limits_and_marks_what_has_expired(tmp_path: Path) -> None:
    limits = {"requests_per_minute": 1_000_000, "concurrent": 4, "timeout": "90s"}
    old: Mapping[str, object] = {
        "name": "old", "sha256": sha256(K2.encode()).hexdigest(), "expires": "2020-01-01", "limits": limits
    }  # fmt: skip
    file = str(configured(tmp_path, old))

    table, as_json, as_csv = (
        call("apikey", "list", "--config", file, "--format", format_).out for format_ in ("table", "json", "csv")
    )

    shown = "1000000 per minute, 4 at once, timeout 90s"
    assert re.search(rf"old +\| +\w{{12}} +\| 2020-01-02T00:00:00.000Z \(expired\) \|.*\| {shown} +\|", table)
    assert "expired |" not in table.splitlines()[0]
    (first, last) = json.loads(as_json)
    assert (first["expired"], first["limits"], last["expired"]) == (False, {}, True)
    assert last["limits"] == {"requests_per_minute": 1_000_000, "concurrent": 4, "timeout_s": 90.0}
    assert as_csv.splitlines()[0] == "name,fingerprint,expires,expired,datasets,rules,rights,limits,last_use"
    assert f',2020-01-02T00:00:00.000Z,true,all,,query,"{shown}",' in as_csv


def test_a_key_is_told_by_its_entry(tmp_path: Path) -> None:
    old = {"name": "old", "sha256": sha256(K2.encode()).hexdigest(), "expires": "2020-01-01"}
    file = configured(tmp_path, old)
    generated = key_format.generate()
    mistyped = generated[:20] + ("a" if generated[20] != "a" else "b") + generated[21:]

    assert check(file, K1).out.startswith("keys[0], fingerprint ")
    for text, message in (
        (K2, "expired at 2020-01-02T00:00:00.000Z."),
        (WRONG, "No entry in the configuration has this key."),
        ("", "No entry in the configuration has this key."),
        (generated, "No entry in the configuration has this key."),
        (mistyped, "The key has a typo: its checksum does not match."),
    ):
        done = check(file, f"{text}\n")
        assert (done.status, done.out) == (1, "")
        assert message in done.err
        assert not text or text not in done.err


def test_authentication_that_is_off_has_no_keys(tmp_path: Path) -> None:
    done = call("apikey", "list", "--config", str(configured(tmp_path, enabled=False)))

    assert (done.status, "Authentication is off" in done.err) == (2, True)


@given(st.integers(0, 41), st.characters(codec="ascii", categories=["L", "N"]))
def test_the_client_and_the_runtime_tell_typing_errors_alike(place: int, character: str) -> None:
    key = key_format.generate()
    for text in (key, key[:place] + character + key[place + 1 :], key[:place], key + character, character + key):
        is_wrong = key_format.has_typing_error(text)
        assert has_typing_error(text) is is_wrong
        assert is_wrong is (text.startswith("qk1_") and text != key)


def test_it_needs_neither_django_nor_an_engine(tmp_path: Path) -> None:
    file = configured(tmp_path)
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['django', 'rest_framework', 'duckdb', 'pyarrow']));"
        "from runtimeclient.main import run; sys.exit(run('querykeep', sys.argv[1:]))"
    )

    assert "keys[0]" in run_python(program, "apikey", "list", "--config", str(file), cwd=tmp_path).stdout
