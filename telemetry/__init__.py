"""
What happens in the runtime, told to one process that counts it and remembers it.

A process says what happened with `telemetry.state.send`. Under `serve` this goes over a socket to the part `watch`,
whose `Collector` passes it to aggregates such as `Counters`; in a single process it goes to them directly.
"""
