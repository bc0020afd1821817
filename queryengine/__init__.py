"""Runs SQL statements: gate, locked sessions, encoders, and the catalog (the manifest of published snapshots)."""

import os

# DuckDB's allocator reads this when DuckDB is imported. Without it, freed addresses stay mapped and count toward the
# memory limit of an engine worker (`system.process_limits`).
os.environ.setdefault("DUCKDB_JE_MALLOC_CONF", "retain:false")
