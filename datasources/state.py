"""The datasets of this process. Only what a framework instantiates calls it; everything else is handed a control."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from datasources.errors import DatasetsUnavailableError

if TYPE_CHECKING:  # Django's start imports this module for client commands too, which are to start fast.
    from datasources.control import DatasetRegistry

_control: DatasetRegistry | None = None
_start: Callable[[], object] | None = None


def get_datasets() -> DatasetRegistry:
    """
    Return who answers for the datasets.

    Raises:
        DatasetsUnavailableError: Nobody does: the runtime has not started them, or has stopped them.
    """
    if _control is None and _start is not None:
        _start()
    if _control is None:
        raise DatasetsUnavailableError
    return _control


def set_datasets(control: DatasetRegistry | None) -> None:
    """Make *control* answer from now on; None forgets."""
    global _control, _start
    _control, _start = control, None


def start_on_demand(start: Callable[[], object]) -> None:
    """Have *start*, which sets a control, called when one is asked for before anybody has set one."""
    global _start  # noqa: PLW0603 - as above
    _start = start
