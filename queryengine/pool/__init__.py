"""
Run statements in processes that can be killed: broker, slots, workers and their client.

A client process (web, flight) has an `EngineClient`. Its `SlotPool` asks the `Broker` in the arbiter for
execution slots, one per running statement, and the `SlotScheduler` of the broker shares them fairly between keys and
processes. A `ClientResult` with a slot talks to an engine worker in an `Exchange`; the worker is a `StatementServer`
under gunicorn's arbiter. In a runtime with a single process, `InProcessEngine` replaces all of this.

Who ends a statement
--------------------

T is the time limit: `Query.timeout_s` (what is left of the caller's limit), otherwise `query.timeout` of the YAML. It
starts when the statement arrives. S is the moment at which somebody stops the statement::

    arrival                                            T     T+1s        T+2.5s           T+3s
    |--- queued ---|--- runs in a slot ----------------|-----|-----------|----------------|
     no slot after:   answer is read to its end         worker: worker:   client: asks for arbiter:
     min(T, queue_    or somebody stops it:             inter-  SIGALRM   the kill, gives  SIGKILL
     timeout)                                           rupt    (kernel)  up the slot
                        S     S+1s      S+1.5s
                        |-----|---------|
                        worker: worker:   client: asks
                        inter-  SIGALRM   for the kill
                        rupt    (kernel)

Each later step acts only if the earlier ones have failed: an interrupt works only if DuckDB checks for it, SIGALRM only
if the worker is not suspended, and the client's request only if the client is still alive.

* **The caller leaves or cancels** (S). The edge closes its `ClientResult`; a cancellation from another process reaches
  it through the broker. The client closes the sending side of its connection. `HangUpWatch` in the worker notices at
  once, interrupts the statement and sets the alarm to `worker.GRACE_S` (1 s). After `client_result.STOP_S` (1.5 s) the
  client asks the broker for the kill. When the whole client process dies, the kernel closes its connections, with the
  same effect, and the broker frees its slots at once.
* **The queue time-out**, `query.queue_timeout`. The broker refuses the statement as busy. If T passes first, the client
  refuses it.
* **The time-out** (T). `Watchdog` in the worker interrupts the statement at T, and again every 50 ms. The alarm ends
  the process at T + `worker.GRACE_S` (1 s). At T + `client_result.CLIENT_KILL_S` (2.5 s) the client gives up and asks
  for the kill. At T + `GRACE_S` + `arbiter.OVERDUE_S` (3 s) the arbiter kills the worker by its heartbeat file, even if
  its client is gone. The limit on CPU time, (T + 2 s) for each processor, ends a worker whose alarm was lost.
* **The memory cap**, `query.memory_limit`. DuckDB refuses the statement when its buffers need more. The kernel refuses
  further memory a little above that (RLIMIT_DATA); the statement fails, and the worker is replaced after it. Temporary
  files are limited in the same two ways by `query.temp_directory_limit` (DuckDB, and RLIMIT_FSIZE). All of these take
  effect immediately.
* **The kill**. Only the arbiter kills, by `arbiter.kill_if`: at a client's request, for an overdue statement, and for a
  worker that sends no heartbeat while it is idle or is stopped by a signal (`STUCK_S`, 5 s), or does not finish booting
  (`BOOT_S`, 60 s). The statement fails with `EngineWorkerDiedError`, or with its time-out if T has passed; no other
  statement is affected.
* **The runtime stops** (SIGTERM). The broker refuses new statements at once. `arbiter.STOP_MARGIN_S` (2 s) before the
  end of `shutdown_timeout`, or halfway if that is later, every client stops its statements as above. Workers left after
  `arbiter.END_S` (1.5 s) get SIGTERM, and SIGKILL `arbiter.LAST_END_S` (0.25 s) later. SIGINT and SIGQUIT kill at once.

`InProcessEngine` has only the interrupts, the queue time-out and DuckDB's limits. Nothing can kill a statement there.
"""
