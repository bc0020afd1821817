"""The support bundle and the output hold no secret, wherever the YAML has one."""

import base64
import io
import json
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from django.core.management import CommandError, call_command

from queryengine.manifest import SNAPSHOT_DIRECTORY, Column, Manifest, write_manifest
from runtime_site.doctor.redaction import REDACTED, Redaction, Scrubber, secrets_of
from runtimeconf.loader import load
from runtimeconf.references import without_literals
from runtimeconf.yaml_reader import read_document
from supervisor.reload import Report
from tests.datasources.support import snapshot_of
from tests.runtime_site.doctor.examining import SMALL, examine, write
from tests.system.harness import run_program

#: Each is in one place; the characters are those that encodings change.
CANARIES = {
    name: f"canary/{name}+0123456789?&= abcdefgh"
    for name in (
        "key",
        "named",
        "environ",
        "dotenv",
        "file",
        "pass",
        "token",
        "header",
        "query",
        "sql",
        "column",
        "etag",
    )
}
C = {name: text.replace(" ", "-") for name, text in CANARIES.items()}

VALID = f"""\
secrets: [{{from: env, name: env}}, {{from: file, name: files, params: {{directory: secret-files}}}}]
datasets:
  - from: 'http://127.0.0.1:1/a.csv'
    name: web
    params: {{http_bearer_token: '{C["token"]}', http_query: '{C["query"]}'}}
  - from: 'http://127.0.0.1:1/b.csv'
    name: headers
    params: {{http_headers: 'X-Token: {C["header"]}'}}
  - from: 'postgres:public.t'
    name: pg
    params: {{pg_host: 127.0.0.1, pg_port: '1', pg_user: u, pg_db: d, pg_pass: '{C["pass"]}', pg_sslmode: disable}}
  - {{from: 'file:here.csv', name: here}}
views:
  - {{name: v, sql: "SELECT '{C["sql"]}' AS a, missing FROM here"}}
"""
AUTH = f"""\
  auth:
    api-key:
      enabled: true
      keys: ['{C["key"]}', '${{ env:DOCTOR_CANARY }}', '${{ files:doctor }}', '${{ secrets:DOCTOR_DOTENV }}']
      named_keys: [{{name: one, key: '{C["named"]}', expires: 2999-01-01}}]
"""

#: Secrets where none belongs: each is a fault, or text that nobody checks.
FAULTY = f"""\
{C["key"]}: {C["named"]}
unknown: {{deep: [{{er: '{C["token"]}'}}]}}
runtime:
  query: {{workers: '{C["pass"]}', timeout: '{C["query"]}', {C["header"].replace("?", "").replace(",", "")}: 1}}
  http: {{bind: '{C["environ"]}', allowed_hosts: ['{C["dotenv"]}']}}
  state_dir: '{C["file"].replace("?", "").replace("/", "")}'
  auth: {{api-key: {{enabled: true, keys: ['${{ secrets:absent }}{C["sql"]}'], api_key: '{C["column"]}'}}}}
datasets:
  - {{from: 'https://user:{C["etag"].replace("/", "")}@host/x.csv', name: d}}
  - {{from: '{C["key"]}:x', name: '{C["named"]}', params: {{'{C["pass"]}': '{C["token"]}', pg_pass: '{C["query"]}'}}}}
"""


def forms(canary: str) -> list[bytes]:
    """Return a secret as it is, in base64 at each offset, and as in URLs and JSON."""
    data = canary.encode()
    inside = [base64.b64encode(bytes(offset) + data + bytes(2))[offset + 2 : -6] for offset in range(3)]
    return [data, quote(canary, safe="").encode(), quote(canary).encode(), data.hex().encode(), *inside, data[:24]]


def assert_without_secrets(*texts: bytes) -> None:
    for text in texts:
        for name, canary in C.items():
            found = [form for form in forms(canary) if form in text]
            assert not found, (name, found, text.decode()[max(0, text.find(found[0]) - 200) :][:500])
            core = f"{name}+0123456789".encode()  # without what some places do not allow
            assert core not in text, (name, text)


def without_column(printed: str) -> bytes:
    """Leave out the name of a column: the terminal shows the operator what `check` shows too."""
    return printed.encode().replace(C["column"].encode()[:24], b"")


def files_of(bundle: Path) -> dict[str, bytes]:
    with tarfile.open(bundle) as tar:
        assert all(entry.isfile() and entry.uid == 0 and entry.mode == 0o600 for entry in tar)
        return {Path(entry.name).name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]


def a_directory_full_of_secrets(directory: Path) -> Path:
    """Return a valid YAML with a canary in each place that may hold a secret."""
    (directory / ".env").write_text(f"DOCTOR_DOTENV={C['dotenv']}\nOTHER='{C['dotenv']}'\n")
    (directory / ".env").chmod(0o600)
    (directory / "secret-files").mkdir()
    (directory / "secret-files" / "doctor").write_text(C["file"])
    (directory / "here.csv").write_text(f"a,{C['column'].replace(',', '')}\n1,2\n")
    state_dir = directory / ".runtime"
    (state_dir / SNAPSHOT_DIRECTORY).mkdir(parents=True, mode=0o700)
    state_dir.chmod(0o700)
    (state_dir / "key-salt").write_bytes(C["key"].encode()[:32].ljust(32, b"x"))
    (state_dir / "key-salt").chmod(0o600)
    (state_dir / C["token"].replace("/", "")).touch()
    kinds = (
        "VARCHAR",
        "DECIMAL(18,3)[]",
        "TIMESTAMP WITH TIME ZONE",
        f'STRUCT("{C["column"]}" BIGINT)[]',
        f"ENUM('{C['column']}')",
        f'"{C["column"]}"',
    )
    columns = tuple(Column(name=C["column"], type=kind) for kind in kinds)
    snapshot = snapshot_of("here", source="f" * 64, source_version=f"v:{C['etag']}", columns=columns)
    write_manifest(state_dir, Manifest(generation=1, snapshots=(snapshot,)))
    Report(state="failed", began=1.0, errors=[f"views[0].sql: {C['sql']}"]).write(state_dir)
    return write(directory, VALID, runtime=SMALL + AUTH)


@pytest.mark.parametrize("as_json", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_no_secret_leaves_a_valid_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], as_json: bool
) -> None:
    monkeypatch.setenv("DOCTOR_CANARY", C["environ"])
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:{quote(C['pass'], safe='')}@127.0.0.1:1")
    bundle = tmp_path / "bundle.tar.gz"

    with pytest.raises(SystemExit):
        call_command("doctor", config=a_directory_full_of_secrets(tmp_path), bundle=bundle, timeout=30.0, json=as_json)

    out, err = capfd.readouterr()
    files = files_of(bundle)
    assert_without_secrets(without_column(out), err.encode(), *files.values())
    assert set(files) == {"findings.json", "versions.json", "machine.json", "state.json", "configuration.yaml"}
    found = {one["about"]: one for one in json.loads(files["findings.json"])}
    assert found["dataset web"]["text"] == "The source cannot be read."
    content = yaml.safe_load(files["configuration.yaml"])
    key = content["runtime"]["auth"]["api-key"]
    assert key["keys"] == [REDACTED, "${ env:DOCTOR_CANARY }", "${ files:doctor }", "${ secrets:DOCTOR_DOTENV }"]
    assert key["named_keys"] == [{"name": REDACTED, "key": REDACTED, "expires": "2999-01-01"}]
    assert content["runtime"]["query"] == {"workers": "1", "memory_limit": "64MiB"}
    assert content["runtime"]["http"]["bind"].startswith("127.0.0.1:")
    assert content["datasets"][0] == {
        "from": f"http:{REDACTED}",
        "name": "web",
        "params": {"http_bearer_token": REDACTED, "http_query": REDACTED},
    }
    assert content["views"] == [{"name": "v", "sql": REDACTED}]
    state = json.loads(files["state.json"])
    plain = ["VARCHAR", "DECIMAL(18,3)[]", "TIMESTAMP WITH TIME ZONE"]
    assert state["manifest"]["snapshots"][0]["column_types"] == [*plain, "STRUCT(...)", "ENUM(...)", "..."]
    assert state["reload"] == {"state": "failed", "step": "", "errors": 1}


def test_no_secret_leaves_a_faulty_yaml(tmp_path: Path) -> None:
    """Unlike `check`, a bundle does not even show a value that is refused."""
    file = tmp_path / "runtime.yaml"
    file.write_text(FAULTY)

    code, found = examine(file, bundle=tmp_path / "bundle.tar.gz")

    files = files_of(tmp_path / "bundle.tar.gz")
    assert code == 1
    assert sum(one.level == "error" for one in found) > 8
    assert_without_secrets(*files.values())
    content: Any = yaml.safe_load(files["configuration.yaml"])
    assert content["<field 1>"] == REDACTED
    assert content["runtime"]["auth"]["api-key"]["keys"] == ["${ secrets:absent }" + REDACTED]
    assert content["datasets"][0] == {"from": f"https:{REDACTED}", "name": "d"}
    assert content["datasets"][1]["params"] == {"<field 1>": REDACTED, "pg_pass": REDACTED}


@pytest.mark.parametrize("content", [None, b"a: [canary/key+0123456789", bytes(1000)])
def test_a_bundle_of_what_is_no_yaml(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "runtime.yaml").write_bytes(content)

    examine(tmp_path / "runtime.yaml", bundle=tmp_path / "bundle.tar.gz")

    files = files_of(tmp_path / "bundle.tar.gz")
    assert_without_secrets(*files.values())
    assert files["configuration.yaml"] == b"null\n...\n"


@pytest.mark.exhaustive
def test_no_secret_leaves_the_program(tmp_path: Path) -> None:
    file = a_directory_full_of_secrets(tmp_path)
    bundle = str(tmp_path / "bundle.tar.gz")

    ended = run_program(
        "manage.py", "doctor", "--config", str(file), "--bundle", bundle, "--timeout", "30",
        DOCTOR_CANARY=C["environ"], AWS_SECRET_ACCESS_KEY=C["pass"], LOG_FORMAT="json",
    )  # fmt: skip

    assert ended.returncode == 1
    assert_without_secrets(without_column(ended.stdout), ended.stderr.encode(), *files_of(Path(bundle)).values())


def test_every_value_of_an_unknown_field_is_redacted(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("runtime: {query: {workers: 3, timeout: 1s}, flight: {enabled: maybe}, new: true}\nname: mine\n")
    document = read_document(file, frozenset()).root
    assert document is not None

    redaction = Redaction(document)

    assert redaction.content == {
        "runtime": {
            "query": {"workers": "3", "timeout": "1s"},
            "flight": {"enabled": REDACTED},
            "<field 3>": REDACTED,
        },
        "name": REDACTED,
    }
    assert redaction.hidden == {"maybe", "new", "true", "mine"}


def test_a_scrubber_finds_a_secret_in_each_form() -> None:
    secret = "p/a?s s+wörd&=0123456789"
    scrubbed = Scrubber([secret], ["hidden", "id"]).scrubbed

    inside = base64.b64encode(b"user:" + secret.encode()).decode()
    for form in (secret, quote(secret, safe=""), json.dumps(secret), secret.encode().hex(), inside, repr(secret)):
        assert secret[8:] not in scrubbed(f"before {form} after")
        assert REDACTED in scrubbed(f"before {form} after")
    assert scrubbed("a hidden id, unhidden") == f"a {REDACTED} id, unhidden"
    assert Scrubber().scrubbed("a") == "a"


def test_an_unknown_connector_may_be_a_secret(tmp_path: Path) -> None:
    """A fault names it without the rest of the value."""
    file = tmp_path / "runtime.yaml"
    file.write_text("datasets: [{from: 'canary0123://host/a', name: d}]\n")

    examine(file, bundle=tmp_path / "bundle.tar.gz")

    for text in files_of(tmp_path / "bundle.tar.gz").values():
        assert b"canary0123" not in text.lower()


def test_secrets_are_values_and_not_the_words_around_them(tmp_path: Path) -> None:
    """Otherwise `http` would be left out of each text once an endpoint is a URL."""
    params = "{s3_endpoint: 'http://127.0.0.1:1', s3_auth: public, s3_region: r, allow_http: 'true'}"
    headers = "{http_headers: 'X-Token: some-value', http_query: 'name=other-value'}"
    datasets = (
        f"datasets:\n  - {{from: 's3://bucket/a.csv', name: a, params: {params}}}\n"
        f"  - {{from: 'https://127.0.0.1:1/a.csv', name: b, params: {headers}}}\n"
    )
    traces = "  traces: {endpoint: 'http://127.0.0.1:1', headers: {authorization: 'Bearer canary0123'}}\n"
    config = load(write(tmp_path, datasets, runtime=SMALL + traces), {})

    scrubbed = Scrubber(secrets_of(config)).scrubbed

    text = "runtime.http.bind: name, X-Token"
    assert scrubbed(text) == text
    assert scrubbed("some-value other-value canary0123") == f"{REDACTED} {REDACTED} {REDACTED}"


def test_only_references_are_kept() -> None:
    assert without_literals("Bearer ${ secrets:a }${b:c}!", "-") == "-${ secrets:a }${b:c}-"
    assert without_literals("", "-") == without_literals("plain", "-") == "-"


def test_a_failed_bundle_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of the command is closed, for example."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(CommandError, match="The findings cannot be written") as failure:
        call_command("doctor", config=write(tmp_path), bundle=tmp_path / "b.tar.gz", stdout=Closed())

    assert failure.value.returncode == 2
    assert not (tmp_path / "b.tar.gz").exists()
