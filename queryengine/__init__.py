"""Run one statement: gate, locked session, encoders, and the catalog (the manifest of published snapshots)."""

import os

# DuckDB's allocator reads this when DuckDB is imported. Without it, addresses that were freed stay mapped, and count as
# memory in use for the limit of an engine worker (`system.process_limits`).
os.environ.setdefault("DUCKDB_JE_MALLOC_CONF", "retain:false")
