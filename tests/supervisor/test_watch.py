"""The address of the metrics endpoint, as the part `watch` changes it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from runtimeconf.model import MetricsConfig, RuntimeConfig
from supervisor.metrics_page import MetricsPage
from supervisor.preparation import check_metrics_endpoint
from system.addresses import Address, is_listening
from tests.system.harness import free_port, taken_port


def test_an_address_that_was_taken_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = RuntimeConfig(file=tmp_path / "runtime.yaml", state_dir=tmp_path)
    page = MetricsPage(None, dict, 0.0)

    def adopt(port: int) -> None:
        page.adopt(replace(config, metrics=MetricsConfig(enabled=True, bind=Address("127.0.0.1", port))), [])

    first = free_port()
    adopt(first)
    assert is_listening(first)

    with taken_port() as port:
        adopt(port)
        assert "There is no metrics endpoint: Cannot listen on" in caplog.text
    adopt(port)

    assert (is_listening(first), is_listening(port)) == (False, True)
    page.close()
    assert not is_listening(port)


def test_a_metrics_endpoint_that_could_not_be_there_is_refused() -> None:
    def page(address: Address) -> MetricsConfig:
        return MetricsConfig(enabled=True, bind=address)

    with taken_port() as port:
        former = page(Address("127.0.0.1", port))
        check_metrics_endpoint(former, former)
        check_metrics_endpoint(former, page(Address("0.0.0.0", port)))
        check_metrics_endpoint(former, page(Address("127.0.0.1", free_port())))
        check_metrics_endpoint(page(Address("127.0.0.1", free_port())), replace(former, enabled=False))
        with pytest.raises(OSError, match=r"Cannot listen on 192\.0\.2\.7:"):  # no machine has it (RFC 5737)
            check_metrics_endpoint(former, page(Address("192.0.2.7", port)))
        for before in (page(Address("127.0.0.1", free_port())), replace(former, enabled=False)):
            with pytest.raises(OSError, match="has the port"):
                check_metrics_endpoint(before, former)
