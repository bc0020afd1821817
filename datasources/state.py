"""The datasets of this process."""

from typing import TYPE_CHECKING

from datasources.errors import DatasetsUnavailableError
from system.process_value import ProcessValue

if TYPE_CHECKING:  # Client commands also import this module and must start fast.
    from datasources.control import DatasetControl

#: None before the runtime has started the datasets, and after it has stopped them: `get` raises
#: DatasetsUnavailableError.
_control: "ProcessValue[DatasetControl]" = ProcessValue(DatasetsUnavailableError)
get_datasets, set_datasets, start_on_demand = _control.get, _control.set, _control.start_on_demand
