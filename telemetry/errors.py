"""
The errors of this package.

TelemetryError
    TelemetryUnavailableError   the process that collects history cannot be reached
"""


class TelemetryError(Exception):
    """The base of this package's errors."""

    code = "telemetry_error"


class TelemetryUnavailableError(TelemetryError):
    """The process that collects history does not respond, or history is disabled."""

    code = "telemetry_unavailable"

    def __init__(self) -> None:
        super().__init__("History and statistics cannot be read at the moment: try again.")
