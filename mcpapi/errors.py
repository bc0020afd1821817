"""
The errors of an MCP request.

::

    McpError
    ├── RpcError     the message itself is at fault: a JSON-RPC error
    └── ToolError    the call of a tool failed: a result that the model reads and can act on
"""

from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022


class McpError(Exception):
    """Base of this package's errors."""


class RpcError(McpError):
    """The message is at fault. `code` is one of the constants above, `data` a JSON value."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.code, self.data = code, data
        super().__init__(message)


class ToolError(McpError):
    """The call of a tool failed. `code` is stable, the message is a sentence for the model."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        super().__init__(detail)
