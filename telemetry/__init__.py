"""
Reports the events of the runtime to one process, which keeps metrics and history.

A process reports an event with `telemetry.state.send`. Under `serve` the event goes over a socket to the `watch`
process, whose `Collector` passes it to `Counters` and `Memory`. In a single process it goes to `Memory` directly.
"""
