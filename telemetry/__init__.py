"""
Reports what happens in the runtime to one process, which keeps metrics and history.

A process reports an event with `telemetry.state.send`. Under `serve` it goes over a socket to the part `watch`, whose
`Collector` passes it to `Counters` and `Memory`; in a single process it goes to `Memory` directly.
"""
