"""The alert rules and the dashboard fit the metrics that there are."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from authkeys.credentials import Reason
from telemetry.metrics import METRICS
from tests.system.harness import REPOSITORY
from tests.system.test_metrics import promtool

RULES = REPOSITORY / "deploy/prometheus/alerts.yml"
TESTS = REPOSITORY / "deploy/prometheus/alerts_test.yml"
DASHBOARD = REPOSITORY / "deploy/grafana/querykeep.json"
PAGE = REPOSITORY / "docs/monitoring.md"

SAMPLES = {metric.sample for metric in METRICS} | {
    f"{metric.name}_{suffix}"
    for metric in METRICS
    if metric.kind == "histogram"
    for suffix in ("bucket", "sum", "count")
}
LABELS = {label for metric in METRICS for label in metric.labels} | {"job", "instance", "le"}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def texts(value: Any, name: str) -> Iterator[str]:
    """Yield the texts of every member *name* in a JSON value."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key == name and isinstance(item, str):
                yield item
            yield from texts(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item, name)


def test_the_rules_fire_when_they_should_and_not_otherwise() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    promtool("test", "rules", str(TESTS))


def test_every_rule_is_tested_and_documented() -> None:
    names = [rule["alert"] for rule in rules()]
    fired = {
        case["alertname"]
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    documented = re.findall(r"^\| `(Querykeep\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert fired == set(names)
    assert documented == names
    assert all({"summary", "description"} == set(rule["annotations"]) for rule in rules())


def test_rules_and_dashboard_name_only_metrics_and_labels_that_there_are() -> None:
    panels = list(texts(json.loads(DASHBOARD.read_text()), "expr"))
    expressions = [*panels, *(rule["expr"] for rule in rules()), RULES.read_text()]
    named = {name for expression in expressions for name in re.findall(r"querykeep_\w+", expression)}

    assert named <= SAMPLES
    assert {name for panel in panels for name in re.findall(r"querykeep_\w+", panel)} >= {
        metric.sample for metric in METRICS if metric.kind == "counter" and "rows" not in metric.name
    } - {"querykeep_events_dropped_total"}
    for expression in expressions:
        for group in re.findall(r"by \((.*?)\)", expression):
            assert {label.strip() for label in group.split(",")} <= LABELS
    for panel in panels:
        assert re.search(r'job=~"\$job",instance=~"\$instance"', panel), panel


def test_the_reason_that_a_rule_leaves_out_exists() -> None:
    left_out = set(re.findall(r'reason!="(\w+)"', RULES.read_text()))

    assert left_out == {Reason.MISSING.value}
