import os
import sys
import threading
from pathlib import Path

import pytest

from runtimeclient.client import RuntimeClient
from runtimeclient.connection import find_credential
from runtimeclient.errors import UsageError
from runtimeclient.http.endpoint import parse_endpoint
from runtimeclient.profiles import Profile

KEY = "from-the-environment"


def key_file(folder: Path, content: bytes, mode: int = 0o600) -> str:
    file = folder / "key"
    file.write_bytes(content)
    file.chmod(mode)
    return str(file)


@pytest.mark.parametrize("has_flag", [True, False])
@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize("has_variable", [True, False])
@pytest.mark.parametrize("has_profile", [True, False])
def test_x02_flag_before_file_before_environment_before_profile(
    tmp_path: Path, has_flag: bool, has_file: bool, has_variable: bool, has_profile: bool
) -> None:
    flag = "from-the-flag" if has_flag else None
    file = key_file(tmp_path, b"from-the-file\n") if has_file else None
    environ = {"RUNTIME_API_KEY": "from-the-environment"} if has_variable else {}
    endpoint = parse_endpoint("http://runtime.example")
    profile = Profile(name="test", endpoint=endpoint, api_key="from-the-profile") if has_profile else None

    found = find_credential(flag, file, environ, profile).api_key
    without_variable = find_credential(flag, file, {"RUNTIME_API_KEY": ""}, profile).api_key

    last = "from-the-profile" if has_profile else None
    assert found == (flag or (file and "from-the-file") or environ.get("RUNTIME_API_KEY") or last)
    assert without_variable == (flag or (file and "from-the-file") or last)


@pytest.mark.parametrize(("content", "key"), [(b"k e y", "k e y"), (b"key\n", "key"), (b"key\r\n", "key")])
def test_one_line_break_at_the_end_of_a_file_is_not_part_of_the_key(tmp_path: Path, content: bytes, key: str) -> None:
    assert find_credential(None, key_file(tmp_path, content), {}).api_key == key


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\n", id="only a line break"),
        pytest.param(b"sesame\n\n", id="two line breaks"),
        pytest.param(b"sesame\nsesame", id="two lines"),
        pytest.param(b" sesame", id="a space before"),
        pytest.param(b"sesame\t", id="a tab behind"),
        pytest.param(b"ses\x00ame", id="NUL"),
        pytest.param("sesamé".encode(), id="not ASCII"),
        pytest.param("\ufeffsesame".encode(), id="byte order mark"),
        pytest.param("sesame".encode("utf-16"), id="UTF-16"),
        pytest.param(b"sesame" * 10_000, id="too long"),
    ],
)
def test_x02_a_key_that_no_header_can_carry_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        find_credential(None, key_file(tmp_path, content), {"RUNTIME_API_KEY": KEY})

    assert "sesam" not in str(caught.value)
    assert f"in {tmp_path}/key" in str(caught.value)


@pytest.mark.parametrize("key", ["sesame\nX-Evil: 1", "sesame\r\n", " sesame", "sesamé", "sesame\x7f", "\udcff"])
def test_flag_variable_and_client_check_a_key_alike(key: str) -> None:
    for use in (
        lambda: find_credential(key, None, {}),
        lambda: find_credential(None, None, {"RUNTIME_API_KEY": key}),
        lambda: RuntimeClient("http://127.0.0.1:8090", key),
    ):
        with pytest.raises(UsageError) as caught:
            use()

        assert "sesam" not in str(caught.value)


@pytest.mark.parametrize(("mode", "is_warned"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
def test_warns_about_a_file_that_others_can_read(tmp_path: Path, mode: int, is_warned: bool) -> None:
    warning = find_credential(None, key_file(tmp_path, b"key", mode), {}).warning

    assert (warning is not None) is is_warned
    assert warning is None or f"mode {mode:04o}" in warning


def test_reads_a_pipe_without_a_warning(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o644)
    writer = threading.Thread(target=fifo.write_text, args=("key\n",))
    writer.start()

    credential = find_credential(None, str(fifo), {})

    writer.join()
    assert (credential.api_key, credential.warning) == ("key", None)


@pytest.mark.parametrize(
    ("flag", "file", "said"),
    [
        ("", "key", "--api-key is empty"),
        (None, "absent", "cannot be read"),
        (None, ".", "cannot be read"),
        (None, "-", "no standard input"),
    ],
)
def test_x02_an_unusable_flag_or_file_is_an_error_even_with_other_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str | None, file: str, said: str
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    key_file(tmp_path, b"k")

    with pytest.raises(UsageError, match=said):
        find_credential(flag, file if file == "-" else str(tmp_path / file), {"RUNTIME_API_KEY": KEY})


def test_a_flag_leaves_the_file_alone_and_is_not_shown(tmp_path: Path) -> None:
    credential = find_credential("sesame", str(tmp_path / "absent"), {})

    assert credential.api_key == "sesame"
    assert "sesame" not in repr(credential)
