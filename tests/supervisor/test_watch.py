"""The address of the page of metrics, as the part `watch` changes it."""

from dataclasses import replace
from pathlib import Path

import pytest

from runtimeconf.model import MetricsConfig, RuntimeConfig
from supervisor.gauges import Gauges
from supervisor.metrics_page import MetricsPage
from supervisor.preparation import check_metrics_address
from supervisor.watch import _Page
from system.addresses import Address, is_listening
from telemetry.aggregates import Memory
from tests.system.harness import free_port, taken_port


def test_an_address_that_was_taken_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = RuntimeConfig(file=tmp_path / "runtime.yaml", state_dir=tmp_path)
    page = _Page(MetricsPage(Memory(config), Gauges(None)))

    def adopt(port: int) -> None:
        page.adopt(replace(config, metrics=MetricsConfig(enabled=True, bind=Address("127.0.0.1", port))))

    first = free_port()
    adopt(first)
    assert is_listening(first)

    with taken_port() as port:
        adopt(port)
        assert "There is no page of metrics: Cannot listen on" in caplog.text
    adopt(port)

    assert (is_listening(first), is_listening(port)) == (False, True)
    page.close()
    assert not is_listening(port)


def test_a_page_of_metrics_that_could_not_be_there_is_refused() -> None:
    def page(address: Address) -> MetricsConfig:
        return MetricsConfig(enabled=True, bind=address)

    with taken_port() as port:
        former = page(Address("127.0.0.1", port))
        check_metrics_address(former, former)
        check_metrics_address(former, page(Address("0.0.0.0", port)))
        check_metrics_address(former, page(Address("127.0.0.1", free_port())))
        check_metrics_address(page(Address("127.0.0.1", free_port())), replace(former, enabled=False))
        with pytest.raises(OSError, match=r"Cannot listen on 192\.0\.2\.7:"):  # no machine has it (RFC 5737)
            check_metrics_address(former, page(Address("192.0.2.7", port)))
        for before in (page(Address("127.0.0.1", free_port())), replace(former, enabled=False)):
            with pytest.raises(OSError, match="has the port"):
                check_metrics_address(before, former)
