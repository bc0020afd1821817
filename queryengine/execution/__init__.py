"""Runs one statement on DuckDB: sessions, readers, definitions, cancellation."""
