"""What one process remembers of the runtime."""

from collections.abc import Mapping, Sequence
from typing import Any

from runtimeconf.model import RuntimeConfig
from telemetry import collector
from telemetry.collector import Aggregate, Answer
from telemetry.counters import Counters
from telemetry.events import Event


class Memory:
    """The aggregates that get every event, and what answers questions about them."""

    def __init__(self, config: RuntimeConfig) -> None:
        self.counters = Counters()
        self.aggregates: Sequence[Aggregate] = [self.counters]
        self.answers: Mapping[str, Answer] = {}
        self.adopt(config)

    def adopt(self, config: RuntimeConfig) -> None:
        """Go on with another configuration."""
        self.counters.expect_datasets([dataset.name for dataset in config.datasets])

    def take(self, event: Event) -> None:
        """Take an event of this process."""
        for aggregate in self.aggregates:
            aggregate.take([event])

    def answer(self, question: Mapping[str, Any]) -> Any:
        """Answer a question of this process. Raises LookupError if nobody can."""
        return collector.answer(self.answers, question)
