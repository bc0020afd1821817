"""The Helm chart, and the plain manifests, which are the chart with its defaults."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate.utils import validate

from runtimeconf.loader import load
from runtimeconf.model import MIB, MetricsConfig, RuntimeConfig
from system.addresses import Address
from tests.deploy.sizing import most_memory
from tests.system.harness import K1, REPOSITORY

CHART = REPOSITORY / "deploy/helm/querykeep"
MANIFESTS = REPOSITORY / "deploy/kubernetes/querykeep.yaml"

#: The oldest version that the chart names, and the newest that the schemas know.
VERSIONS = ("1.30", "1.37")


MONITORED = ("--set", "metrics.enabled=true,metrics.port=9999,metrics.serviceMonitor=true")


def helm(*arguments: str) -> str:
    """Run Helm, which `make test-all` installs, and return what it prints; skip the test where it is not installed."""
    places = os.pathsep.join([str(Path(sys.prefix) / "helm"), os.environ["PATH"]])
    program = shutil.which("helm", path=places)
    if program is None:
        assert "CI" not in os.environ, "helm is missing: make test-all installs it"
        pytest.skip("needs helm")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def resources(text: str) -> dict[str, Any]:
    """Return the resources by kind. Each fits the schemas of Kubernetes, which know every field."""
    found = [resource for resource in yaml.safe_load_all(text) if resource]
    for resource in found:
        for version in VERSIONS:
            validate(resource, version, strict=True)
    return {resource["kind"]: resource for resource in found}


def runtime_of(found: dict[str, Any], directory: Path) -> RuntimeConfig:
    """Read the YAML of the ConfigMap as a pod would."""
    (directory / "api-key").write_text(K1)
    text = found["ConfigMap"]["data"]["runtime.yaml"].replace("/run/secrets/querykeep", str(directory))
    file = directory / "runtime.yaml"
    file.write_text(text)
    return load(file, {})


def pod_of(found: dict[str, Any]) -> dict[str, Any]:
    return dict(found["StatefulSet"]["spec"]["template"]["spec"])


def test_the_manifests_fit_kubernetes_and_the_runtime(tmp_path: Path) -> None:
    found = resources(MANIFESTS.read_text())
    config, pod = runtime_of(found, tmp_path), pod_of(found)
    (container,) = pod["containers"]

    assert set(found) == {"ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "StatefulSet"}
    assert config.warnings == ()
    assert config.auth.keys[0].reveal() == K1
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": config.http.bind.port, "flight": config.flight.bind.port}
    assert {port["name"]: port["port"] for port in found["Service"]["spec"]["ports"]} == ports
    stop_s = container["lifecycle"]["preStop"]["sleep"]["seconds"] + config.shutdown_timeout_s
    assert pod["terminationGracePeriodSeconds"] > stop_s
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert config.state_dir.parent == mounts["state"]
    assert int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * 1024 * MIB >= most_memory(config)


def test_a_release_may_be_named_like_a_number() -> None:
    found = resources(helm("template", "123", str(CHART)))

    assert {resource["metadata"]["name"] for resource in found.values()} == {"123"}


def test_the_pods_have_no_more_rights_than_the_image_needs() -> None:
    pod = pod_of(resources(MANIFESTS.read_text()))
    (container,) = pod["containers"]
    dockerfile = (REPOSITORY / "deploy/Dockerfile").read_text()

    assert f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" in dockerfile
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (REPOSITORY / "pyproject.toml").read_text()

    assert f'\nversion = "{chart["appVersion"]}"\n' in project
    assert f":{chart['appVersion']}\n" in MANIFESTS.read_text()


@pytest.mark.exhaustive
def test_the_manifests_are_the_chart_with_its_defaults() -> None:
    helm("lint", "--strict", str(CHART))

    assert helm("template", "querykeep", str(CHART)) == MANIFESTS.read_text()


@pytest.mark.exhaustive
def test_every_value_of_the_chart(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "image": {"repository": "localhost/other", "tag": "1.2.3"},
        "replicas": 3,
        "config": {"runtime": {"shutdown_timeout": "1m", "query": {"workers": 4}}},
        "secretName": "others",
        "probeScheme": "HTTPS",
        "preStopSeconds": 7,
        "terminationGracePeriodSeconds": 90,
        "resources": {"limits": {"cpu": 3}},
        "persistence": {"enabled": False, "size": "1Gi"},
        "networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))

    found = resources(helm("template", "mine", str(CHART), "--values", str(tmp_path / "values.yaml")))

    config, pod, spec = runtime_of(found, tmp_path), pod_of(found), found["StatefulSet"]["spec"]
    (container,) = pod["containers"]
    assert {resource["metadata"]["name"] for resource in found.values()} == {"mine"}
    assert (config.shutdown_timeout_s, config.query.workers, config.query.memory_limit_bytes) == (60, 4, 512 * 1024**2)
    assert (container["image"], spec["replicas"]) == ("localhost/other:1.2.3", 3)
    probes = [container[f"{name}Probe"]["httpGet"]["scheme"] for name in ("startup", "liveness", "readiness")]
    assert probes == ["HTTPS"] * 3
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == 7
    assert pod["terminationGracePeriodSeconds"] == 90
    assert container["resources"]["limits"] == {"cpu": 3, "memory": "4Gi"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["state"] == {"name": "state", "emptyDir": {"sizeLimit": "1Gi"}}
    assert volumes["keys"]["secret"]["secretName"] == "others"
    assert "volumeClaimTemplates" not in spec
    assert found["NetworkPolicy"]["spec"]["ingress"][0]["from"] == values["networkPolicy"]["from"]

    monitored = list(yaml.safe_load_all(helm("template", "mine", str(CHART), *MONITORED)))
    (monitor,) = [one for one in monitored if one["kind"] == "ServiceMonitor"]
    found = resources(yaml.safe_dump_all([one for one in monitored if one is not monitor]))
    config, (container,) = runtime_of(found, tmp_path), pod_of(found)["containers"]
    assert config.metrics == MetricsConfig(enabled=True, bind=Address("0.0.0.0", 9999))
    assert len(config.warnings) == 1
    assert {"name": "metrics", "containerPort": 9999} in container["ports"]
    assert {"name": "metrics", "port": 9999, "targetPort": "metrics"} in found["Service"]["spec"]["ports"]
    assert found["NetworkPolicy"]["spec"]["ingress"][1]["ports"] == [{"port": "metrics"}]
    assert monitor["spec"]["endpoints"][0]["port"] == "metrics"
    assert monitor["spec"]["selector"]["matchLabels"] == found["Service"]["metadata"]["labels"]

    stored = resources(helm("template", "mine", str(CHART), "--set", "persistence.storageClassName=fast"))
    assert stored["StatefulSet"]["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    closed = helm("template", "mine", str(CHART), "--set", "networkPolicy.enabled=false")
    assert "NetworkPolicy" not in resources(closed)
