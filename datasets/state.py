"""The datasets of this process. Only what a framework instantiates calls it; everything else is handed a control."""

from __future__ import annotations

from datasets.control import DatasetRegistry
from datasets.errors import DatasetsUnavailableError

_control: DatasetRegistry | None = None


def get_datasets() -> DatasetRegistry:
    """
    Return who answers for the datasets.

    Raises:
        DatasetsUnavailableError: Nobody does: the runtime has not started them, or has stopped them.
    """
    if _control is None:
        raise DatasetsUnavailableError
    return _control


def set_datasets(control: DatasetRegistry | None) -> None:
    """Make *control* answer from now on; None forgets."""
    global _control  # noqa: PLW0603 - the one accessor of this room's state
    _control = control
