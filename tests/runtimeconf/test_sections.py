"""Rules for every section: whether it is on, misplaced fields, and settings without effect."""

from typing import Any

import pytest

from runtimeconf.fields import Section
from runtimeconf.schema import ROOT
from tests.corpus import each
from tests.runtimeconf.configurations import Fault, Faults, Load

SECTIONS: dict[str, Section[Any]] = {path: field for path, field in ROOT.walk("") if isinstance(field, Section)}
DATASET = "datasets:\n  - from: file:a.csv\n    name: a\n"


@each(
    ("text", "message"),
    [
        *(
            pytest.param(f"runtime:\n  {path[8:]}:\n", f"2: {path}: is empty: fill it in, or omit it", id=path)
            for path in SECTIONS
            if path.startswith("runtime.") and path.count(".") == 1
        ),
        pytest.param(
            "runtime:\n  tls: {}\n", "2: runtime.tls: is empty: fill it in, or omit it", id="an empty mapping"
        ),
        pytest.param(
            "runtime:\n  tls: {certificate_file: a.crt, key_file: a.key}\n",
            "2: runtime.tls: lacks the field enabled: true or false",
            id="TLS files alone",
        ),
        pytest.param(
            f"{DATASET}    acceleration: {{indexes: }}\n",
            "4: datasets[0].acceleration.indexes: is empty: it must be a mapping of columns to enabled or "
            "unique, or be omitted",
            id="indexes",
        ),
    ],
)
def test_an_empty_section_is_a_fault(fault: Fault, text: str, message: str) -> None:
    assert fault(text) == message


def test_a_misplaced_top_level_field_gets_a_hint(faults: Faults) -> None:
    text = f"{DATASET}    runtime: {{}}\n    params: {{secrets: a}}\nruntime:\n  runtime: {{}}\n  datasets: []\n"

    found = {(fault.yaml_path, fault.message) for fault in faults(text)}

    message = "unknown field; it belongs at the top level of the file"
    assert found == {
        ("datasets[0].runtime", message),
        ("datasets[0].params.secrets", message),
        ("runtime.runtime", message),
        ("runtime.datasets", message),
    }


@each("name", sorted({path.rpartition(".")[2].removesuffix("[]") for path, _ in ROOT.walk("")}))
def test_no_hint_suggests_the_refused_field_itself(faults: Faults, name: str) -> None:
    texts = (f"{name}: x\n", f"runtime:\n  {name}: x\n", f"{DATASET}    {name}: x\n", f"views: [{{{name}: x}}]\n")

    said = [fault for text in texts for fault in faults(f"{text}no_such_part: x\n")]

    assert [fault for fault in said if f"did you mean {name}?" in fault.message] == []


@pytest.mark.parametrize(
    ("limit", "interval", "warning"),
    [
        ("5m", "", "has no effect unless a dataset has a refresh_check_interval"),
        ("5m", ", refresh_check_interval: 5m", "is not longer than every refresh_check_interval"),
        ("5m", ", refresh_check_interval: 1m", ""),
        ("5m", ", refresh_cron: '0 * * * *'", ""),
    ],
)
def test_a_limit_on_staleness_that_cannot_be_met_or_has_no_effect_is_warned_of(
    load_text: Load, limit: str, interval: str, warning: str
) -> None:
    assert load_text("{}").query.max_staleness_s is None
    dataset = f"{{from: file:a.csv, name: a, acceleration: {{enabled: true{interval}}}}}"

    config = load_text(f"runtime: {{query: {{max_staleness: {limit}}}}}\ndatasets: [{dataset}]")

    assert config.query.max_staleness_s == 300
    assert [one for one in config.warnings if "max_staleness" in one and (warning or "!") in one] == (
        list(config.warnings) if warning else []
    )
    assert bool(config.warnings) == bool(warning)
