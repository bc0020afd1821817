"""The HTTP API on the wire: endpoint, key, timeouts, results and resources."""

import sys

# Where click is installed, httpx imports its own command line program with rich and pygments, a fifth of the CPU of
# `querykeep sql "SELECT 1"`. None makes the import system treat a module as absent, which httpx handles.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type] # typeshed does not know None
