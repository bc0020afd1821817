"""The files for nodes and for a cluster on Kubernetes: valid, and fit for each other, the chart and the runtime."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from kubernetes_validate.utils import validate
from msgspec.structs import replace

from runtimeconf.loader import load
from runtimeconf.model import RuntimeConfig
from system.addresses import Address
from tests.cluster.clusters import ClusterEngine, Sail, config_of, in_place, is_open, write_flights
from tests.deploy.fronts import need
from tests.deploy.test_kubernetes import CHART, MANIFESTS, VERSIONS, helm, pod_of, resources, runtime_of
from tests.system.harness import K1, REPOSITORY, Program, clean_environ, free_port, wait_for

SPARK = REPOSITORY / "deploy/kubernetes/spark.yaml"
NODES = REPOSITORY / "deploy/helm/nodes.yaml"
CLUSTER = REPOSITORY / "deploy/helm/cluster.yaml"
PAGE = REPOSITORY / "docs/how-to/kubernetes-scaling.md"

SECRETS = ("api-key", "s3-key", "s3-secret", "spark-token", "spark-ca.pem")


def merged(values: Any, more: Any) -> Any:
    """Merge values as Helm does: null removes one."""
    if not isinstance(values, dict) or not isinstance(more, dict):
        return more
    found = values | {name: merged(values.get(name), value) for name, value in more.items()}
    return {name: value for name, value in found.items() if value is not None}


@pytest.fixture
def secrets(tmp_path: Path, tls_files: tuple[Path, Path]) -> Path:
    """A directory with the entries of the Secret of the runtime."""
    for secret in SECRETS:
        (tmp_path / secret).write_text(tls_files[0].read_text() if secret.endswith(".pem") else K1)
    return tmp_path


def config_in(values: Path, directory: Path) -> RuntimeConfig:
    """Read the configuration of the chart with *values* as a pod would."""
    texts = (CHART / "values.yaml").read_text(), values.read_text()
    config = merged(*map(yaml.safe_load, texts))["config"]
    file = directory / "runtime.yaml"
    file.write_text(yaml.safe_dump(config).replace("/run/secrets/querykeep", str(directory)))
    return load(file, {})


@pytest.fixture(scope="module")
def spark() -> dict[tuple[str, str], Any]:
    """The resources of Spark by kind and name."""
    found = [one for one in yaml.safe_load_all(SPARK.read_text()) if one]
    for resource in found:
        for version in VERSIONS:
            validate(resource, version, strict=True)
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def selected(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def test_the_values_of_nodes_fit_the_runtime(secrets: Path) -> None:
    config = config_in(NODES, secrets)

    assert config.warnings == ()
    assert config.snapshots is not None
    assert (config.snapshots.role, config.snapshots.params["s3_key"]) == ("auto", K1)


def test_the_values_of_a_cluster_lead_to_spark(secrets: Path, spark: dict[tuple[str, str], Any]) -> None:
    config = config_in(CLUSTER, secrets)
    service = spark["Service", "querykeep-spark"]

    assert config.warnings == ()
    assert config.engine is not None
    assert config.engine.address == Address(service["metadata"]["name"], service["spec"]["ports"][0]["port"])
    assert config.engine.params == {"token": K1, "uses_tls": True, "tls_ca": str(secrets / "spark-ca.pem")}


def test_nobody_but_the_runtime_and_the_executors_reaches_spark(spark: dict[tuple[str, str], Any]) -> None:
    runtime = resources(MANIFESTS.read_text())["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    template = spark["Deployment", "querykeep-spark"]["spec"]["template"]
    driver, containers = template["metadata"]["labels"], template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for one in containers for port in one["ports"]}
    executor = executor_of(spark)["metadata"]["labels"]
    policy = spark["NetworkPolicy", "querykeep-spark-driver"]["spec"]

    assert selected(policy["podSelector"]["matchLabels"], driver)
    admitted = [
        (
            rule["from"][0]["podSelector"]["matchLabels"],
            [ports.get(port["port"], port["port"]) for port in rule["ports"]],
        )
        for rule in policy["ingress"]
    ]
    other: dict[str, str] = {}
    for labels, expected in ((runtime, [15002]), (executor, [7078, 7079]), (other, [])):
        assert sorted(port for peer, listed in admitted if selected(peer, labels) for port in listed) == expected
    policy = spark["NetworkPolicy", "querykeep-spark-executor"]["spec"]
    assert selected(policy["podSelector"]["matchLabels"], executor)
    (rule,) = policy["ingress"]
    peer = rule["from"][0]["podSelector"]["matchLabels"]
    assert [selected(peer, labels) for labels in (driver, executor, runtime, other)] == [True, True, False, False]
    for name in ("querykeep-spark", "querykeep-spark-driver"):
        assert selected(spark["Service", name]["spec"]["selector"], driver)
        assert not selected(spark["Service", name]["spec"]["selector"], executor)


def settings_of(spark: dict[tuple[str, str], Any]) -> dict[str, str]:
    lines = spark["ConfigMap", "querykeep-spark"]["data"]["spark.conf"].splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


def executor_of(spark: dict[tuple[str, str], Any]) -> dict[str, Any]:
    return dict(yaml.safe_load(spark["ConfigMap", "querykeep-spark"]["data"]["executor.yaml"]))


def test_the_settings_of_spark_fit_its_pods(spark: dict[tuple[str, str], Any]) -> None:
    settings, pod = settings_of(spark), spark["Deployment", "querykeep-spark"]["spec"]["template"]["spec"]
    driver, proxy = pod["containers"]
    template = executor_of(spark)
    image = settings["spark.kubernetes.container.image"]

    validate({**template, "metadata": {"name": "executor", **template["metadata"]}}, VERSIONS[-1], strict=False)
    assert settings["spark.connect.grpc.binding.address"] == "127.0.0.1"
    assert f"grpc://127.0.0.1:{settings['spark.connect.grpc.binding.port']};" in nginx_of(spark)
    assert settings["spark.connect.grpc.binding.port"] in driver["readinessProbe"]["exec"]["command"][-1]
    assert settings["spark.driver.host"] == "querykeep-spark-driver"
    ports = {port["name"]: port["port"] for port in spark["Service", "querykeep-spark-driver"]["spec"]["ports"]}
    assert ports == {"driver": int(settings["spark.driver.port"]), "blocks": int(settings["spark.blockManager.port"])}
    assert driver["image"] == image
    assert (settings["spark.authenticate"], settings["spark.network.crypto.enabled"]) == ("true", "true")
    # In the environment: arguments can be read by every process of the machine.
    token = next(one for one in driver["env"] if one["name"] == "SPARK_CONNECT_AUTHENTICATE_TOKEN")
    assert token["valueFrom"] == {"secretKeyRef": {"name": "querykeep-spark", "key": "token"}}
    for container in (driver, proxy):
        rights = {name: value for name, value in container["securityContext"].items() if name != "runAsUser"}
        assert rights == pod_of(resources(MANIFESTS.read_text()))["containers"][0]["securityContext"]
    assert template["spec"]["automountServiceAccountToken"] is False


def test_the_page_names_every_secret() -> None:
    text = PAGE.read_text()
    used = {"querykeep-spark", "querykeep-spark-storage", "querykeep-spark-tls", "querykeep-keys"}

    assert all(f"secret {verb}" in text or f"generic {verb}" in text for verb in used)
    assert [secret for secret in SECRETS if secret not in text] == []


def nginx_of(spark: dict[tuple[str, str], Any]) -> str:
    return str(spark["ConfigMap", "querykeep-spark"]["data"]["nginx.conf"])


@pytest.fixture
def proxied(spark: dict[tuple[str, str], Any], tmp_path: Path, tls_files: tuple[Path, Path]) -> Iterator[Address]:
    """A cluster behind the nginx of the manifest."""
    need("nginx")
    with Sail(tmp_path) as cluster:
        port = free_port()
        text = nginx_of(spark)
        for old, new in {
            " /tmp/": f" {tmp_path}/",
            "listen 15002": f"listen {port}",
            "127.0.0.1:15003": f"127.0.0.1:{cluster.port}",
            "/etc/ssl/spark/tls.crt": str(tls_files[0]),
            "/etc/ssl/spark/tls.key": str(tls_files[1]),
        }.items():
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "nginx.conf").write_text(text)
        with Proxy(tmp_path):
            wait_for(lambda: is_open(port), "nginx")
            yield Address("localhost", port)


class Proxy(Program):
    """nginx with the configuration in *directory*."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "nginx.log"
        self.command = ["nginx", "-e", "stderr", "-g", "daemon off;", "-c", str(directory / "nginx.conf")]

    def __enter__(self) -> Self:
        self.run(self.command, clean_environ())
        return self


@pytest.mark.exhaustive
def test_the_runtime_speaks_to_a_cluster_through_the_proxy(
    proxied: Address, tmp_path: Path, tls_files: tuple[Path, Path]
) -> None:
    config = config_of(tmp_path / "state", proxied, [in_place("flights", write_flights(tmp_path))])
    assert config.engine is not None
    engine = replace(config.engine, params={"token": K1, "uses_tls": True, "tls_ca": str(tls_files[0])})

    with closing(ClusterEngine(replace(config, engine=engine))) as runtime:
        assert runtime.run("SELECT count(*) AS n FROM flights") == b'[{"n":1000}]'
        rows = runtime.run("SELECT repeat('x', 1000) AS t FROM range(0, 100000)", encoding="csv")
        assert len(rows) == len("t\n") + 100_000 * 1001


@pytest.mark.exhaustive
@pytest.mark.parametrize("values", [NODES, CLUSTER], ids=lambda values: values.stem)
def test_helm_renders_the_values(values: Path, secrets: Path) -> None:
    found = resources(helm("template", "querykeep", str(CHART), "--values", str(values)))

    assert runtime_of(found, secrets) == config_in(values, secrets)
