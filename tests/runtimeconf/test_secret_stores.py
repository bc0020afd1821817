"""Secret stores on real files: where a value comes from, and which store wins."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runtimeconf.secret_stores import (
    MAX_DOTENV_BYTES,
    MAX_SECRET_BYTES,
    EnvStore,
    FileStore,
    SecretError,
    SecretStores,
)


def env_store(directory: Path, environ: dict[str, str], warnings: list[tuple[str, str]] | None = None) -> EnvStore:
    recorded = warnings if warnings is not None else []
    return EnvStore("env", environ, directory, lambda file, sentence: recorded.append((file, sentence)))


def write(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


# --- env --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "dotenv", "name", "value"),
    [
        pytest.param({"a_b": "lower", "A_B": "upper"}, ("", ""), "a_b", "lower", id="as written before upper case"),
        pytest.param({"A_B": "upper"}, ("", ""), "a_b", "upper", id="upper case"),
        pytest.param({"a_b": "lower"}, ("", ""), "A_B", None, id="never lower case"),
        pytest.param({"A": "process"}, ("A=local", "A=env"), "a", "process", id="the process before the files"),
        pytest.param({"A": "process"}, ("a=local", ""), "a", "process", id="upper case there before exact in a file"),
        pytest.param({}, ("A=local", "A=env"), "a", "local", id=".env.local before .env"),
        pytest.param({}, ("B=local", "A=env"), "a", "env", id=".env"),
        pytest.param({}, ("B=local", "A=env"), "c", None, id="nowhere"),
        pytest.param({"A": ""}, ("", "A=env"), "a", "", id="an empty variable counts as found"),
        pytest.param({"SPICE_a": "spice"}, ("", ""), "a", "spice", id="with the prefix of Spice.ai"),
        pytest.param({}, ("", "SPICE_A=spice"), "a", "spice", id="with the prefix, in upper case, in a file"),
        pytest.param({"SPICE_A": "spice"}, ("", "A=env"), "a", "env", id="with the prefix only if it is nowhere else"),
    ],
)
def test_c37_where_a_variable_is_found(
    tmp_path: Path, environ: dict[str, str], dotenv: tuple[str, str], name: str, value: str | None
) -> None:
    for file, text in zip((".env.local", ".env"), dotenv, strict=True):
        write(tmp_path / file, text)

    assert env_store(tmp_path, environ).get(name) == value


@pytest.mark.parametrize(
    ("line", "value"),
    [
        pytest.param("K=plain", "plain", id="C37 plain"),
        pytest.param("K=plain # comment", "plain", id="C37 comment"),
        pytest.param("K=pl#ain", "pl#ain", id="C37 a hash inside"),
        pytest.param("export K=plain", "plain", id="C37 export"),
        pytest.param('K="a b # c"', "a b # c", id="C37 double quotes"),
        pytest.param("K='a \"b\"'", 'a "b"', id="C37 single quotes"),
        pytest.param("K = spaced  ", "spaced", id="C37 spaces"),
        pytest.param("K=plain\r", "plain", id="C37 CRLF"),
        pytest.param("K=${OTHER}$OTHER", "${OTHER}$OTHER", id="C37 nothing is interpolated"),
        pytest.param("K='${ secrets:other }'", "${ secrets:other }", id="C37 a reference stays as it is"),
        pytest.param("K=0123", "0123", id="C37 digits"),
        pytest.param("K=a=b", "a=b", id="C37 an equals sign"),
        pytest.param("K=", "", id="C37 empty"),
        pytest.param("K", None, id="C37 no value at all"),
        pytest.param("\ufeffK=plain", "plain", id="C37 a byte order mark"),
    ],
)
def test_c37_dotenv_lines(tmp_path: Path, line: str, value: str | None) -> None:
    write(tmp_path / ".env", f"{line}\nOTHER=canary\n")

    assert env_store(tmp_path, {}).get("k") == value


def test_dotenv_files_are_not_opened_while_the_process_has_the_value(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    store = env_store(tmp_path, {"K": "value"})

    assert store.get("k") == "value"
    with pytest.raises(SecretError, match=r"^\.env cannot be read: it is a directory"):
        store.get("other")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_dotenv_file_that_others_can_read_is_warned_about_once_used(tmp_path: Path, mode: int) -> None:
    write(tmp_path / ".env", "K=value\n", mode)
    warnings: list[tuple[str, str]] = []
    store = env_store(tmp_path, {"P": "process"}, warnings)

    store.get("p")
    store.get("absent")
    assert warnings == []

    store.get("k")
    expected = (
        [] if mode == 0o600 else [(str(tmp_path / ".env"), "contains a secret in use, but other users can read it")]
    )
    assert warnings == expected
    assert "value" not in repr(SecretStores([store]))


# --- file -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "value"),
    [
        pytest.param("value", "value", id="C38 no newline"),
        pytest.param("value\n", "value", id="C38 one newline"),
        pytest.param("value\n\n", "value\n", id="C38 exactly one of two"),
        pytest.param("value\r\n", "value", id="C38 CRLF is one newline"),
        pytest.param("value\r", "value\r", id="C38 a lone CR stays"),
        pytest.param("\nvalue", "\nvalue", id="C38 not at the beginning"),
        pytest.param(" value \n", " value ", id="C38 spaces stay"),
        pytest.param("\n", "", id="C38 only a newline is empty"),
        pytest.param("", "", id="C38 empty"),
        pytest.param("${ secrets:x }", "${ secrets:x }", id="C38 never expanded"),
        pytest.param("x" * MAX_SECRET_BYTES, "x" * MAX_SECRET_BYTES, id="C38 64 KiB"),
    ],
)
def test_c38_a_file_is_the_value_without_one_newline(tmp_path: Path, content: str, value: str) -> None:
    write(tmp_path / "api_key", content, 0o444)

    assert FileStore("files", tmp_path).get("api_key") == value


def test_c38_a_kubernetes_volume_with_links(tmp_path: Path) -> None:
    (tmp_path / "..2026_11_21").mkdir()
    write(tmp_path / "..2026_11_21" / "api_key", "value\n")
    (tmp_path / "..data").symlink_to("..2026_11_21")
    (tmp_path / "api_key").symlink_to("..data/api_key")

    assert FileStore("files", tmp_path).get("api_key") == "value"


def test_c38_a_missing_secret_is_none(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("nowhere")

    assert FileStore("files", tmp_path).get("absent") is None
    assert FileStore("files", tmp_path).get("dangling") is None
    assert FileStore("files", tmp_path / "no-directory").get("absent") is None


# --- both -------------------------------------------------------------------------------------------------------------

LIMITS = {"api_key": MAX_SECRET_BYTES, ".env.local": MAX_DOTENV_BYTES}
BINARY = "it is binary, not UTF-8 text"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(lambda path: path.write_bytes(b"API_KEY=\xff\n"), BINARY, id="C38 not UTF-8"),
        pytest.param(lambda path: path.write_bytes(b"API_KEY=a\0b\n"), BINARY, id="C38 a NUL"),
        pytest.param(
            lambda path: path.write_bytes(b"#" * (LIMITS[path.name] + 1)),
            "it is larger than (64|1024) KiB",
            id="C38 large",
        ),
        pytest.param(Path.mkdir, "it is a directory, not a regular file", id="C38 a directory"),
        pytest.param(os.mkfifo, "it is a named pipe, not a regular file", id="C38 a pipe, without a wait"),
    ],
)
@pytest.mark.parametrize(("name", "shown"), [("api_key", "its file"), (".env.local", r"\.env\.local")])
def test_c38_an_unusable_file_is_an_error_and_not_a_missing_secret(
    tmp_path: Path, name: str, shown: str, make: Callable[[Path], object], reason: str
) -> None:
    store = FileStore("files", tmp_path) if name == "api_key" else env_store(tmp_path, {})
    make(tmp_path / name)

    with pytest.raises(SecretError, match=f"^{shown} cannot be read: {reason}") as caught:
        store.get("api_key")

    context = caught.value.__context__
    assert context is None or "API_KEY" not in str(context.args)


# --- all together -----------------------------------------------------------------------------------------------------


@pytest.fixture
def stores(tmp_path: Path) -> SecretStores:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    write(tmp_path / "one" / "both", "from one")
    write(tmp_path / "two" / "both", "from two")
    write(tmp_path / "one" / "only", "only in one")
    write(tmp_path / "one" / "hidden", "a good value")
    write(tmp_path / "two" / "hidden", b"\xff")
    write(tmp_path / "two" / "empty", "\n")
    write(tmp_path / "one" / "empty", "a good value")
    return SecretStores([FileStore("one", tmp_path / "one"), FileStore("two", tmp_path / "two")])


def test_the_last_defined_store_wins(stores: SecretStores) -> None:
    assert stores.resolve("secrets", "both") == "from two"
    assert stores.resolve("one", "both") == "from one"
    assert stores.resolve("secrets", "only") == "only in one"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        pytest.param(
            ("secrets", "absent"),
            "secret 'absent' was not found; stores searched: two, one "
            "(tried: the file DIRECTORY/two/absent; the file DIRECTORY/one/absent)",
            id="C07 anywhere",
        ),
        pytest.param(
            ("two", "only"),
            "secret 'only' was not found; stores searched: two (tried: the file DIRECTORY/two/only)",
            id="C07 in one store",
        ),
        pytest.param(
            ("three", "both"),
            "refers to a secret store that is not configured; the stores are: secrets, one, two",
            id="C09 unknown store",
        ),
        pytest.param(
            ("secrets", "empty"),
            "secret 'empty' in store two is empty (tried: the file DIRECTORY/two/empty)",
            id="empty, no other asked",
        ),
        pytest.param(
            ("secrets", "hidden"),
            "secret 'hidden' in store two: its file cannot be read: it is binary, not UTF-8 text",
            id="unusable, no other asked",
        ),
    ],
)
def test_c07_an_error_names_the_secret_and_the_stores(
    tmp_path: Path, stores: SecretStores, reference: tuple[str, str], message: str
) -> None:
    with pytest.raises(SecretError) as caught:
        stores.resolve(*reference)

    assert str(caught.value) == message.replace("DIRECTORY", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "environ", "dotenv", "message"),
    [
        (
            "api_key",
            {},
            "OTHER=canary\n",
            (
                "was not found; stores searched: env (tried: the variables api_key, API_KEY, SPICE_api_key and "
                "SPICE_API_KEY in the environment, DIRECTORY/.env.local (no such file) and DIRECTORY/.env)"
            ),
        ),
        (
            "K",
            {},
            None,
            (
                "was not found; stores searched: env (tried: the variables K and SPICE_K in the environment, "
                "DIRECTORY/.env.local (no such file) and DIRECTORY/.env (no such file))"
            ),
        ),
        ("k", {"K": ""}, "K=canary\n", "in store env is empty (tried: the variable K in the environment)"),
        ("k", {}, "SPICE_K=\n", "in store env is empty (tried: the variable SPICE_K in DIRECTORY/.env)"),
    ],
)
def test_an_error_names_the_variables_and_the_files(
    tmp_path: Path, name: str, environ: dict[str, str], dotenv: str | None, message: str
) -> None:
    if dotenv is not None:
        write(tmp_path / ".env", dotenv)

    with pytest.raises(SecretError) as caught:
        SecretStores([env_store(tmp_path, environ)]).resolve("secrets", name)

    assert str(caught.value) == f"secret '{name}' {message.replace('DIRECTORY', str(tmp_path))}"
