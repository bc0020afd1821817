"""What becomes of the fields of a Spicepod, and the page that says so."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtimeconf.fields import ListField, Section
from runtimeconf.loader import examine
from runtimeconf.schema import ROOT
from runtimeconf.survey import Use, survey
from tests.runtimeconf.configurations import KEY

FIELDS = (Path(__file__).parents[2] / "docs" / "internals" / "spicepod-fields.md").read_text(encoding="utf-8")
UNSUPPORTED = (Path(__file__).parents[2] / "docs" / "internals" / "spicepod-unsupported.md").read_text(encoding="utf-8")

SPICEPOD = f"""version: v1
kind: Spicepod
name: shop
secrets: [{{from: env, name: env}}]
models:
  - {{from: openai, name: m}}
runtime:
  auth: {{api-key: {{enabled: true, keys: [{KEY}]}}}}
  task_history: {{enabled: false}}
  flight: {{max_message_size: 1MiB}}
datasets:
  - from: file:a.csv
    name: a
    description: All of them
    acceleration: {{engine: duckdb, params: {{duckdb_file: a.db}}, retention_check_enabled: true}}
  - from: file:b.csv
    name: b
    acceleration: {{engine: arrow}}
    wrong: 1
  - from: github:github.com/a/b
    name: c
    params: {{github_token: x}}
"""


def sections() -> Iterator[tuple[str, Section[Any]]]:
    """Yield every section with its path and a dot, those of items of lists too; the root has none."""
    for path, field in [("", ROOT), *ROOT.walk("")]:
        section, name = (field.item, f"{path}[]") if isinstance(field, ListField) else (field, path)
        if isinstance(section, Section):
            yield name and f"{name}.", section


def uses(path: Path, text: str) -> tuple[Use, ...]:
    file = path / "spicepod.yaml"
    file.write_text(text)
    return survey(examine(file, {}))


def test_each_field_is_taken_or_has_a_reason(tmp_path: Path) -> None:
    found = uses(tmp_path, SPICEPOD)

    assert {use.path for use in found if use.verdict == "supported"} == {
        *("version", "kind", "name", "runtime.flight.max_message_size", "datasets[].from", "datasets[].name"),
        *("secrets[].from", "secrets[].name", "runtime.auth.api-key.enabled", "runtime.auth.api-key.keys"),
        *("datasets[].description", "datasets[].acceleration.retention_check_enabled"),
    }
    assert {(use.path, use.lines) for use in found if use.verdict == "supported, different meaning"} == {
        ("datasets[].acceleration.engine", (15, 18)),
        ("datasets[].acceleration.params", (15,)),
    }
    assert {(use.path, use.lines, use.remark[:12]) for use in found if use.verdict == "unsupported"} == {
        ("models", (5,), "is not avail"),
        ("runtime.task_history", (9,), "is not avail"),
        ("datasets[].acceleration", (15,), "lacks the fi"),
        ("datasets[].wrong", (19,), "unknown fiel"),
        ("datasets[].from", (20,), "must be a co"),
        ("datasets[].params.github_token", (22,), "belongs to a"),
    }
    assert KEY not in str(found)


#: What a Spicepod may have below `auth` and `secrets`, with a part of each text that may be a key.
SENSITIVE = """version: v1
kind: Spicepod
name: shop
secrets:
  - {from: azure_keyvault, name: canary-1}
  - {from: file, name: files, params: {directory: /canary-2, canary-3: x}}
  - {store: canary-4}
runtime:
  auth:
    api_key:
      &canary-5 enabled: true
      keys: [canary-6-3bZ9hQ:rw, "${ env:X }:ro", canary-7-3bZ9hQ]
      &a canary-8: x
      rate_limit: 3
    canary-9: {}
"""


def test_the_fields_of_authentication_and_secrets_are_listed_without_what_may_be_a_key(tmp_path: Path) -> None:
    found = uses(tmp_path, SENSITIVE)

    assert {(use.path, use.lines) for use in found if use.verdict == "supported"} == {
        *(("version", (1,)), ("kind", (2,)), ("name", (3,))),
        *(("secrets[].name", (5, 6)), ("secrets[].from", (6,)), ("secrets[].params.directory", (6,))),
        *(("runtime.auth.api_key.enabled", (11,)), ("runtime.auth.api_key.keys", (12,))),
    }
    assert {
        (use.path, use.lines, use.remark[:21]) for use in found if use.verdict == "supported, different meaning"
    } == {
        ("runtime.auth.api_key.keys[]", (12,), "Spice strips the suff"),
    }
    assert {(use.path, use.lines, use.remark[:13]) for use in found if use.verdict == "unsupported"} == {
        *(("secrets[].from", (5,), "must be env, "), ("secrets[].params", (6,), "unknown field")),
        *(("secrets[]", (7,), "unknown field"), ("secrets[]", (7,), "lacks the fie")),
        *(("runtime.auth.api_key", (13, 14), "unknown field"), ("runtime.auth", (15,), "unknown field")),
    }
    assert "canary" not in str(found)


def test_what_is_no_spicepod_lists_only_the_fields_with_another_meaning(tmp_path: Path) -> None:
    (only,) = uses(
        tmp_path, "models: []\ndatasets: [{from: 'file:a.csv', name: a, acceleration: {engine: arrow, x: 1}}]\n"
    )

    assert (only.path, only.verdict) == ("datasets[].acceleration.engine", "supported, different meaning")
    assert uses(tmp_path, "name: a\n") == ()
    assert uses(tmp_path, "kind: [Spicepod]\n") == ()
    assert uses(tmp_path, "{") == ()


def test_a_view_has_a_reason_for_each_field_of_a_dataset_that_it_does_not_take() -> None:
    """Without a reason, an error would suggest the field of the dataset."""
    fields = dict(sections())
    view, dataset = fields["views[].acceleration."], fields["datasets[].acceleration."]
    taken = {setting.name for setting in view.settings} | view.unavailable.keys()

    assert {setting.name for setting in dataset.settings} - taken == set()
    assert dataset.unavailable.keys() - taken == set()


def test_the_reference_says_what_to_do_instead_of_each_field_that_is_not_here() -> None:
    rows = [line for line in UNSUPPORTED.splitlines() if line.startswith("|")]
    missing = {
        f"{above}{name}"
        for above, section in sections()
        for name, instead in section.unavailable.items()
        if not any(f"`{above}{name}`" in row and instead in row for row in rows)
    }

    assert missing == set()


def test_the_reference_lists_each_field_with_another_meaning() -> None:
    noted = {f"{above}{setting.name}" for above, field in sections() for setting in field.settings if setting.note}
    assert {path for path in noted if f"| `{path}` |" not in FIELDS} == set()
