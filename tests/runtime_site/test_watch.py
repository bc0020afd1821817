"""The address of the page of metrics, as the part `watch` changes it."""

from dataclasses import replace
from pathlib import Path

import pytest

from runtime_site.gauges import Gauges
from runtime_site.management.commands.runwatch import _Page
from runtime_site.metrics_page import MetricsPage
from runtime_site.watching import Memory
from runtimeconf.model import MetricsConfig, RuntimeConfig
from system.addresses import Address, is_listening
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
