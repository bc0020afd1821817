"""
Runs statements in processes that can be killed: broker, slots, workers and their client.

A client process (web, flight) has an `EngineClient`. Its `SlotPool` asks the `Broker` in the arbiter for execution
slots, one per running statement. The broker's `SlotScheduler` shares the slots fairly between keys and processes. A
`ClientResult` with a slot communicates with an engine worker in an `Exchange`. The worker is a `StatementServer` under
gunicorn's arbiter. In a runtime with a single process, `InProcessEngine` replaces all of this.

Who ends a statement
--------------------

T is the time limit: `Query.timeout_s` (the rest of the caller's limit), otherwise the configured `query.timeout`. It
starts when the statement arrives. S is the time at which somebody stops the statement::

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

* **The caller leaves or cancels** (S). The edge closes its `ClientResult`. A cancellation from another process arrives
  through the broker. The client closes the sending side of its connection. `HangUpWatch` in the worker notices this
  immediately, interrupts the statement and sets the alarm to `worker.GRACE_S` (1 s). After `client_result.STOP_S`
  (1.5 s), the client asks the broker for the kill. If the whole client process dies, the kernel closes its connections,
  with the same effect, and the broker frees its slots immediately.
* **The queue timeout**, `query.queue_timeout`. The broker refuses the statement as busy. If T passes first, the client
  refuses it.
* **The timeout** (T). `Watchdog` in the worker interrupts the statement at T, and again every 50 ms. The alarm ends the
  process at T + `worker.GRACE_S` (1 s). At T + `client_result.CLIENT_KILL_S` (2.5 s), the client abandons the statement
  and asks for the kill. At T + `GRACE_S` + `arbiter.OVERDUE_S` (3 s), the arbiter kills the worker based on its
  heartbeat file, even if its client is gone. The limit on CPU time, (T + 2 s) for each processor, ends a worker whose
  alarm was lost.
* **The memory limit**, `query.memory_limit`. DuckDB refuses the statement if its buffers need more. The kernel refuses
  further memory slightly above that (RLIMIT_DATA). The statement then fails, and the worker is replaced afterwards.
  Temporary files are limited in the same two ways by `query.temp_directory_limit` (DuckDB, and RLIMIT_FSIZE). All of
  these limits take effect immediately.
* **The kill**. Only the arbiter kills workers, with `arbiter.kill_if`: if a client requests it, if a statement is
  overdue, if a worker sends no heartbeat while it is idle or is stopped by a signal (`STUCK_S`, 5 s), or if it does not
  finish booting (`BOOT_S`, 60 s). The statement fails with `EngineWorkerDiedError`, or with a timeout if T has passed.
  No other statement is affected.
* **The runtime stops** (SIGTERM). The broker refuses new statements immediately. `arbiter.STOP_MARGIN_S` (2 s) before
  the end of `shutdown_timeout`, or halfway through it if that is later, every client stops its statements as above.
  Workers that remain after `arbiter.END_S` (1.5 s) get SIGTERM, and SIGKILL `arbiter.LAST_END_S` (0.25 s) later. SIGINT
  and SIGQUIT kill immediately.

`InProcessEngine` has only the interrupts, the queue timeout and DuckDB's limits. Nothing can kill a statement there.
"""
