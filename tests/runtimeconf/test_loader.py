"""Loading a file: all faults at once, in order, in a bounded number of lines, and without secrets."""

import re
import time
import traceback
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from runtimeconf.errors import MAX_SHOWN_FAULTS, ConfigError
from runtimeconf.loader import load
from runtimeconf.model import RuntimeConfig
from runtimeconf.schema import ROOT
from tests.runtimeconf.configurations import KEY, Faults, Load, with_keys


def test_faults_of_the_reader_and_of_the_schema_come_together_by_line(faults: Faults) -> None:
    text = with_keys("- !!str x\n- ''\n- ${ secrets:missing }") + "      enabled: false\nmodels: []\nname: [x]\n"

    assert [(fault.line, fault.yaml_path) for fault in faults(text)] == [
        (6, "runtime.auth.api-key.keys[0]"),
        (7, "runtime.auth.api-key.keys[1]"),
        (8, "runtime.auth.api-key.keys[2]"),
        (9, "runtime.auth.api-key.enabled"),
        (10, "models"),
        (11, "name"),
    ]


def test_every_fault_is_one_line_with_file_line_and_path(load_text: Load, yaml_file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text('runtime:\n  http: {bind: "a\\nb"}\n  "x\\ny": 1\n')

    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{yaml_file}:2: runtime.http.bind: must be an address")
    assert lines[1].startswith(f"{yaml_file}:3: runtime.'x\\ny': unknown field")


def test_twenty_lines_at_most_and_the_last_one_counts_the_rest(load_text: Load, yaml_file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text("".join(f"field{n}: 1\n" for n in range(100)))

    assert len(caught.value.faults) == 100
    assert len(caught.value.lines()) == MAX_SHOWN_FAULTS
    assert caught.value.lines()[-1] == f"{yaml_file}: and 81 more errors"


@pytest.mark.exhaustive
def test_many_faults_cost_little_time(faults: Faults) -> None:
    begin = time.process_time()

    assert len(faults("".join(f"field{n}: 1\n" for n in range(20_000)))) == 20_000
    assert time.process_time() - begin < 30


def test_a_fault_behind_an_alias_is_reported_once_per_path_and_shows_no_key(faults: Faults) -> None:
    text = "runtime:\n  http: &x {bind: canary}\n  flight: *x\n"

    assert [(fault.line, fault.yaml_path) for fault in faults(text)] == [
        (2, "runtime.http.bind"),
        (2, "runtime.flight.bind"),
    ]
    assert "canary" not in str(faults(text))
    text = with_keys("- &key canary-canary-canary") + "  http: {bind: *key}\nversion: *key\n"

    assert len(faults(text)) == 2
    assert "canary" not in str(faults(text))


def test_paths_are_relative_to_a_linked_yaml_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "runtime.yaml").write_text("{}\n")
    (tmp_path / "runtime.yaml").symlink_to("..data/runtime.yaml")

    monkeypatch.chdir(tmp_path)

    for path in (tmp_path / "runtime.yaml", Path("runtime.yaml")):
        config = load(path, {})
        assert (config.file, config.state_dir) == (tmp_path / "runtime.yaml", tmp_path / ".runtime")


def everything_about(error: BaseException) -> str:
    """Return the error, its causes and contexts as text, with their arguments and the traceback."""
    texts = ["".join(traceback.format_exception(error))]
    seen: BaseException | None = error
    while seen is not None:
        texts += [repr(seen), repr(seen.args)]
        seen = seen.__cause__ or seen.__context__
    return "".join(texts)


CANARY = "canary0Zk3vT9qLm2XwR7bN"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(with_keys(f"- {CANARY}") + "  timeout: x\n", id="C33 a later field is wrong"),
        pytest.param(with_keys(f"- {CANARY}\n- '{CANARY}"), id="C33 an open quote"),
        pytest.param(with_keys(f"- {CANARY}: [{CANARY}"), id="C33 an open bracket"),
        pytest.param(with_keys(f"- @{CANARY}"), id="C33 a reserved character"),
        pytest.param(with_keys(f"- *{CANARY}"), id="C33 an unknown alias"),
        pytest.param(with_keys(f"- &{CANARY} x\n- *{CANARY}x"), id="C33 an anchor"),
        pytest.param(with_keys(f"- &a {CANARY}") + "*a : x\n", id="C33 an alias as a field name"),
        pytest.param(with_keys(f"- !{CANARY} x"), id="C33 a tag"),
        pytest.param(with_keys(f'- "\\{CANARY}"'), id="C33 an escape"),
        pytest.param(with_keys(f"- {CANARY}\t: x"), id="C33 a tab"),
        pytest.param(with_keys(f"- {CANARY}é").encode("latin-1"), id="C33 Latin-1"),
        pytest.param(with_keys(f"- {CANARY}\0").encode(), id="C33 a NUL"),
        pytest.param(with_keys(f"- {{{CANARY}: 1, {CANARY}: 2}}"), id="C33 a duplicate"),
        pytest.param(with_keys(f"- ${{ {CANARY}:x }}"), id="C33 an unknown store"),
        pytest.param(with_keys(f"- ${{ {CANARY} }}"), id="C33 no reference"),
        pytest.param(with_keys(f"- {CANARY},{CANARY}"), id="C33 a comma"),
        pytest.param(with_keys("- ${ env:x },"), id="C33 a secret with a comma"),
        pytest.param(f"runtime:\n  auth:\n    {CANARY}: x\n", id="C33 the key as a field"),
        pytest.param(f"runtime:\n  auth: {CANARY}\n", id="C33 the key in place of the block"),
        pytest.param(f"auth: {{api-key: {{enabled: true, keys: [{CANARY}]}}}}\n", id="C33 at the root"),
        pytest.param(f"secrets: [{{from: {CANARY}, name: '{CANARY} x'}}]\n", id="C33 below secrets"),
        pytest.param(f"secrets: [{{from: env, name: a, params: {{{CANARY}: x}}}}]\n", id="C33 a parameter"),
        pytest.param(f"runtime: {{auht: {{{CANARY}: 1, {CANARY}: 2}}}}\n", id="C33 a duplicate below a misspelt auth"),
    ],
)
def test_c33_no_error_carries_a_key(load_text: Load, text: str | bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(text, {"X": CANARY})

    # The traceback quotes source lines of this file, which do not hold the canary literally.
    assert CANARY not in everything_about(caught.value)
    assert caught.value.__context__ is None


YAML_PIECES = st.sampled_from(
    [
        *sorted({name.removesuffix("[]") for path, _ in ROOT.walk("") for name in path.split(".")}),
        *("true", "false", "null", "~", "''", '"', "'", "- ", ": ", ":", "\n", "\n  ", "\n    ", "\n      ", " ", "#"),
        *("{", "}", "[", "]", ",", "|", ">", "&a ", "*a", "!!str ", "<<", "---\n", "...", "?", "%YAML 1.1\n", "\t"),
        *("${ secrets:x }", "${ env:x }", "${", "0123", "1_000", "30s", "1GiB", "127.0.0.1:0", "file:a.csv", "v1"),
        *("\\u0000", "\0", "\ufeff", "\x85", "\u2028", "é", "\ud7ff", "<", "=", "@", "`", "2024-01-01", "key-1"),
    ]
)
TEXTS = st.lists(YAML_PIECES, max_size=60).map("".join)
LOADED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def outcome(yaml_file: Path, data: bytes) -> RuntimeConfig | ConfigError:
    yaml_file.write_bytes(data)
    try:
        return load(yaml_file, {"X": KEY})
    except ConfigError as exc:
        return exc


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@settings(LOADED, max_examples=200)
@given((TEXTS | st.text()).map(encoded) | st.binary(max_size=300) | TEXTS.map(lambda text: text.encode("utf-16")))
@example(b"runtime: {auth: {api-key: {enabled: true, keys: [key-1]}}}")
@example(b"a: 'x\n\n")
@example(b"? ")
@example(b"- - -\n")
@example(b"{[]: }")
def test_any_bytes_give_a_configuration_or_faults(yaml_file: Path, data: bytes) -> None:
    result = outcome(yaml_file, data)

    if isinstance(result, ConfigError):
        assert 0 < len(result.lines()) <= MAX_SHOWN_FAULTS
        assert all(line.startswith(str(yaml_file)) and line.isprintable() for line in result.lines())


INTACT = with_keys("- ${ env:x }\n- key-1")


@LOADED
@given(
    position=st.integers(0, len(INTACT)),
    inserted=st.lists(YAML_PIECES, max_size=4).map("".join),
    deleted=st.integers(0, 12),
)
@example(position=0, inserted="", deleted=0)
@example(position=len(INTACT), inserted="      enabled: false\n", deleted=0)
@example(position=len(INTACT), inserted="runtime: {}\n", deleted=0)
def test_no_edit_opens_a_runtime_with_authentication_enabled(
    yaml_file: Path, position: int, inserted: str, deleted: int
) -> None:
    """As long as the text holds `enabled: true` under `auth`, authentication is on or loading fails."""
    text = INTACT[:position] + inserted + INTACT[position + deleted :]
    is_intact = re.match(r"runtime:\n  auth:\n    api-key:\n      enabled: true\n", text) is not None

    result = outcome(yaml_file, encoded(text))

    if is_intact and isinstance(result, RuntimeConfig):
        assert result.auth.enabled
        assert result.auth.keys


@LOADED
@example(['"0', '0"'])
@example(["'a''b", "c'"])
@given(st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1), min_size=1, max_size=5))
def test_a_key_that_loads_is_one_of_the_source_texts(yaml_file: Path, keys: list[str]) -> None:
    text = with_keys("\n".join(f"- {key}" for key in keys))

    result = outcome(yaml_file, text.encode())

    if isinstance(result, RuntimeConfig):
        written = [key.strip("'\"").replace("''", "'") if key[0] in "'\"" else key for key in keys]
        loaded = [key.reveal() for key in result.auth.keys]
        folded = " - ".join(keys)  # a quoted scalar may span lines, and YAML folds a line break to a space
        texts = (*keys, *written, folded, folded.replace("''", "'"))
        assert all(any(key in text for text in texts) or "\\" in folded for key in loaded)


@LOADED
@given(st.from_regex(r"[A-Za-z0-9._+=/~-]{1,80}", fullmatch=True).filter(lambda text: text[0] not in "-=~"))
def test_a_plain_key_is_kept_letter_by_letter(yaml_file: Path, key: str) -> None:
    result = outcome(yaml_file, with_keys(f"- {key}").encode())

    if key.lower() == "null":
        assert isinstance(result, ConfigError)
    else:
        assert isinstance(result, RuntimeConfig)
        assert [secret.reveal() for secret in result.auth.keys] == [key]
