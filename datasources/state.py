"""The datasets of this process, for classes that a framework instantiates. All others receive a control."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from datasources.errors import DatasetsUnavailableError

if TYPE_CHECKING:  # Client commands import this module too, and must start fast.
    from datasources.control import DatasetControl

_control: DatasetControl | None = None
_start: Callable[[], object] | None = None


def get_datasets() -> DatasetControl:
    """
    Return the control of the datasets.

    Raises:
        DatasetsUnavailableError: There is none: the runtime has not started the datasets, or has stopped them.
    """
    if _control is None and _start is not None:
        _start()
    if _control is None:
        raise DatasetsUnavailableError
    return _control


def set_datasets(control: DatasetControl | None) -> None:
    """Set the control of the datasets; None removes it."""
    global _control, _start
    _control, _start = control, None


def start_on_demand(start: Callable[[], object]) -> None:
    """Register *start*, which sets a control. It is called when a control is first needed and none is set."""
    global _start  # noqa: PLW0603 - as above
    _start = start
