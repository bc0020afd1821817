import io
import os
import stat
from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends import fail

from tests.runtimeclient.calling import Called, Screen, call
from tests.runtimeclient.remote import API_KEY, Remote, Reply, refuse_other_keys
from tests.runtimeclient.terminal import CTRL_D, Terminal

STATUS = Reply(body=b'[{"name":"http","endpoint":"x","status":"Ready"}]')


class Ring(KeyringBackend):
    """A keyring in memory."""

    priority = 5

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


@pytest.fixture
def ring() -> Ring:
    ring = Ring()
    keyring.set_keyring(ring)
    return ring


@pytest.fixture(autouse=True)
def _no_keyring_of_this_machine() -> None:
    keyring.set_keyring(fail.Keyring())  # type: ignore[no-untyped-call]


@pytest.fixture
def runtime(remote: Remote) -> Remote:
    remote.on("GET", "/v1/status", refuse_other_keys(STATUS))
    return remote


def write(home: Path, text: str, mode: int = 0o600) -> None:
    (home / "querykeep").mkdir(exist_ok=True)
    (home / "querykeep" / "config.toml").write_text(text)
    (home / "querykeep" / "config.toml").chmod(mode)


def call_at(home: Path, *arguments: str, **environ: str) -> Called:
    return call(*arguments, environ={"XDG_CONFIG_HOME": str(home), **environ})


def sent_keys(remote: Remote) -> list[str | None]:
    return [request.headers.get("X-API-Key") for request in remote.requests if request.path == "/v1/status"]


def login(runtime: Remote, home: Path, *arguments: str, **streams: io.StringIO) -> Called:
    return runtime.call("login", *arguments, environ={"XDG_CONFIG_HOME": str(home)}, **streams)


LOGIN = ("--api-key", API_KEY, "--store", "file")


@pytest.mark.parametrize("name", ["test", "default"])
@pytest.mark.parametrize("source", ["api_key", "api_key_file", "api_key_variable", "api_key_keyring"])
def test_a_profile_supplies_the_key(runtime: Remote, tmp_path: Path, ring: Ring, source: str, name: str) -> None:
    (tmp_path / "the.key").write_text(API_KEY)
    (tmp_path / "the.key").chmod(0o600)
    ring.kept["querykeep", f"{name}@{runtime.url}"] = API_KEY
    value = {"api_key": f'"{API_KEY}"', "api_key_file": '"../the.key"', "api_key_variable": '"MY_KEY"'}
    write(tmp_path, f'[profiles.{name}]\nendpoint = "{runtime.url}"\n{source} = {value.get(source, "true")}\n')

    done = call_at(tmp_path, "status", QUERYKEEP_PROFILE=name.removeprefix("default"), MY_KEY=API_KEY)

    assert (done.status, done.err) == (0, "")


def test_the_key_of_a_profile_is_sent_to_its_endpoint_only(runtime: Remote, tmp_path: Path) -> None:
    write(tmp_path, f'[profiles.default]\nendpoint = "https://runtime.example"\napi_key = "{API_KEY}"\n')

    named = call_at(tmp_path, "status", "--profile", "default", "--http-endpoint", runtime.url)
    unnamed = call_at(tmp_path, "status", RUNTIME_HTTP_ENDPOINT=runtime.url)

    assert named.status == 2
    assert "the profile's key is not sent there" in named.err
    assert unnamed.status == 4
    assert sent_keys(runtime) == [None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.test\n", r"is not valid TOML (at line 1, column 15)."),
        (f'[profiles.test]\nendpoint = "http://a"\napi_key = "{API_KEY}\n', "is not valid TOML"),
        ("profile = 1\n", "unknown field profile: did you mean"),
        ("profiles = 1\n", "profiles must be a table."),
        ("[profiles]\ntest = 1\n", "profiles.test must be a table."),
        ("[profiles.test]\nendpont = 'http://a'\n", "unknown field endpont: did you mean endpoint?"),
        ("[profiles.test]\nxyz = 'http://a'\n", "unknown field xyz."),
        ("[profiles.test]\nendpoint = 1\n", "endpoint must be a string."),
        ("[profiles.test]\napi_key_keyring = 'x'\n", "api_key_keyring must be true or false."),
        ("[profiles.test]\n", "has no endpoint."),
        ("[profiles.test]\nendpoint = 'ftp://a'\n", "The profile test: "),
        (
            "[profiles.test]\nendpoint = 'http://a'\napi_key_file = 'a'\napi_key_variable = 'B'\n",
            "api_key_file and api_key_variable: set only one of them.",
        ),
        ("[profiles.other]\nendpoint = 'http://a'\n", "config.toml. The profiles are other."),
        ("", "There is no profile test in "),
        ("#" * (1 << 20) + "\n", "is longer than 1048576 bytes."),
        (
            "[profiles.test]\nendpoint = 'http://a'\napi_key_variable = 'B'\n",
            "The variable B, which contains the API key of the profile test, is not set.",
        ),
        (
            "[profiles.test]\nendpoint = 'http://a'\napi_key_keyring = true\n",
            "The keyring cannot be used (NoKeyringError).",
        ),
        *[
            (f'[profiles.test]\nendpoint = "https://127.0.0.1:1"\n{field} = "{path}"\n', said)
            for field in ("api_key_file", "tls_root_certificate_file")
            for path, said in (("~nobody-of-that-name/x", "home directory is not known"), ("a\\u0000b", "NUL"))
        ],
    ],
)
def test_an_invalid_profile_is_a_usage_error(tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, text)

    done = call_at(tmp_path, "status", "--profile", "test")

    assert done.status == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert API_KEY not in done.err


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_x05_a_file_with_a_key_accessible_to_others_is_refused(runtime: Remote, tmp_path: Path, mode: int) -> None:
    write(tmp_path, f'[profiles.test]\nendpoint = "{runtime.url}"\napi_key = "{API_KEY}"\n', mode)

    done = call_at(tmp_path, "status", "--profile", "test")

    assert done.status == 2
    assert f"contains a key and is accessible to others (mode {mode:04o}): chmod 600 it." in done.err
    assert runtime.requests == []


def test_files_that_are_directories_and_directories_that_are_files(runtime: Remote, tmp_path: Path) -> None:
    (tmp_path / "querykeep" / "config.toml").mkdir(parents=True)
    nowhere = Path(os.devnull)

    assert "config.toml cannot be read: Is a directory." in call_at(tmp_path, "status").err
    assert call("status", "--profile", "../x").status == 2
    assert call("logout", "--profile", "absent").err == "Error: There is no profile absent.\n"
    # Without profiles, the call is anonymous.
    assert runtime.call("status", environ={"XDG_CONFIG_HOME": str(nowhere)}).status == 4
    done = login(runtime, nowhere, *LOGIN)
    assert done.status in {1, 2}
    assert "Not a directory" in done.err


def test_a_user_without_a_home_has_no_profiles(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    def has_no_entry(uid: int) -> None:
        raise KeyError(uid)

    remote.on("GET", "/v1/status", STATUS)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", has_no_entry)

    for home in ("", "relative"):
        assert remote.call("status", environ={"XDG_CONFIG_HOME": home}).status == 0
        named = call("status", "--profile", "test", environ={"XDG_CONFIG_HOME": home})
        assert (named.status, named.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("place", ["keyring", "file"])
def test_login_stores_an_accepted_key_and_logout_deletes_it(
    runtime: Remote, tmp_path: Path, ring: Ring, place: str
) -> None:
    config = tmp_path / "querykeep" / "config.toml"
    write(tmp_path, "# mine\n[profiles.other]\nendpoint = 'http://a' # stays\n")

    done = login(runtime, tmp_path, "--profile", "test", "--api-key", API_KEY, "--store", place)

    where = "the keyring" if place == "keyring" else str(tmp_path / "querykeep" / "keys" / "test")
    assert done == Called(0, f"The key of {runtime.url} is in {where}; its profile is test.\n", "")
    assert config.read_text().startswith("# mine\n[profiles.other]\nendpoint = 'http://a' # stays\n")
    assert API_KEY not in config.read_text()
    assert all(
        stat.S_IMODE(file.stat().st_mode) == (0o700 if file.is_dir() else 0o600)
        for file in (tmp_path / "querykeep").rglob("*")
    )
    assert call_at(tmp_path, "status", "--profile", "test").status == 0

    assert call_at(tmp_path, "logout", "--profile", "test") == Called(0, "The profile test no longer has a key.\n", "")
    assert call_at(tmp_path, "status", "--profile", "test").status == 4
    assert ring.kept == {}
    assert not (tmp_path / "querykeep" / "keys" / "test").exists()
    assert "# stays" in config.read_text()


def test_a_second_login_moves_the_key(runtime: Remote, tmp_path: Path, ring: Ring) -> None:
    login(runtime, tmp_path, *LOGIN)
    # Without a place: the keyring, since there is one; without an endpoint: that of the profile.
    done = call_at(tmp_path, "login", "--api-key", API_KEY)

    assert "is in the keyring; its profile is default." in done.out
    assert list(ring.kept.values()) == [API_KEY]
    assert list((tmp_path / "querykeep" / "keys").iterdir()) == []
    login(runtime, tmp_path, *LOGIN)
    assert ring.kept == {}


def test_login_without_a_keyring_stores_an_accepted_key_in_a_file(runtime: Remote, tmp_path: Path) -> None:
    ignored = call_at(tmp_path, "login", RUNTIME_HTTP_ENDPOINT=runtime.url, RUNTIME_API_KEY=API_KEY)
    refused = login(runtime, tmp_path, "--api-key", "wrong")

    assert (ignored.status, refused.status) == (2, 4)
    assert "The key cannot be typed without a terminal" in ignored.err
    assert list(tmp_path.iterdir()) == []
    assert f"is in {tmp_path / 'querykeep' / 'keys' / 'default'};" in login(runtime, tmp_path, "--api-key", API_KEY).out


def test_login_warns_about_an_unchecked_key(remote: Remote, tmp_path: Path) -> None:
    remote.on("GET", "/v1/status", STATUS)
    (tmp_path / "key").write_text(API_KEY)
    (tmp_path / "key").chmod(0o644)

    done = login(remote, tmp_path, "--api-key-file", str(tmp_path / "key"), "--store", "file")

    assert done.status == 0
    assert "can be read by others" in done.err
    assert "does not require a key at present: this one was not checked." in done.err


def test_login_asks_at_a_terminal(runtime: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getpass", lambda _: API_KEY)

    assert login(runtime, tmp_path, "--store", "file", stdin=Screen()).status == 0
    assert (tmp_path / "querykeep" / "keys" / "default").read_text() == f"{API_KEY}\n"


@pytest.mark.parametrize("arguments", [("login",), ("sql", "SELECT 1", "--api-key-file", "-")])
def test_ctrl_d_instead_of_a_key_is_a_usage_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with Terminal(*arguments, environ={"XDG_CONFIG_HOME": str(tmp_path)}) as terminal:
        terminal.shows("API key")
        terminal.send(CTRL_D)

        terminal.begins("Error: No API key was typed.")
        assert terminal.leaves() == 2


def test_logout_reports_a_key_that_it_did_not_delete(tmp_path: Path) -> None:
    write(tmp_path, "[profiles.a]\nendpoint = 'http://a'\napi_key_variable = 'MY_KEY'\n")

    told = call_at(tmp_path, "logout", QUERYKEEP_PROFILE="a").out.splitlines()

    assert told[1] == "MY_KEY still holds the key: login did not create it."


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (("os.geteuid", lambda: os.getuid() + 1), "was not written: its directory belongs to another user.\n"),
        (("pathlib.Path.replace", no_space), "cannot be written: No space left on device.\n"),
    ],
)
def test_a_login_that_fails_leaves_the_profiles_unchanged(
    runtime: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[str, object], said: str
) -> None:
    write(tmp_path, "[profiles.a]\nendpoint = 'http://a'\n")
    monkeypatch.setattr(*broken)

    done = login(runtime, tmp_path, *LOGIN)

    assert done.status == 1
    assert done.err.endswith(said)
    assert (tmp_path / "querykeep" / "config.toml").read_text() == "[profiles.a]\nendpoint = 'http://a'\n"
    assert not list((tmp_path / "querykeep").rglob("*.part"))


@pytest.mark.parametrize("name", ["config.toml", "keys/default"])
@pytest.mark.parametrize("is_there", [True, False])
def test_login_does_not_follow_symbolic_links(runtime: Remote, tmp_path: Path, name: str, is_there: bool) -> None:
    place, target = tmp_path / "querykeep" / name, tmp_path / "target"
    place.parent.mkdir(parents=True)
    place.symlink_to(target)
    if is_there:
        target.write_text("# mine\n")

    done = login(runtime, tmp_path, *LOGIN)

    assert done.status == 1
    assert done.err == f"Error: {place} was not written: it is a symbolic link.\n"
    assert place.is_symlink()
    assert target.exists() is is_there
    assert not is_there or target.read_text() == "# mine\n"
    # Nothing half done: no key without its profile.
    assert [path for path in (tmp_path / "querykeep").rglob("*") if path.is_file()] == ([place] if is_there else [])
