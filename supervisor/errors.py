"""The errors that prevent a start. This package raises none of its own."""

from authkeys.errors import AuthKeysError
from datasources.errors import DatasetError
from queryengine.errors import QueryError
from runtimeconf.errors import RuntimeConfError
from system.errors import StateDirectoryError

#: Errors that prevent startup. Each prints as one sentence; a ConfigError prints one line per error.
StartError = (RuntimeConfError, AuthKeysError, DatasetError, QueryError, StateDirectoryError, OSError)
