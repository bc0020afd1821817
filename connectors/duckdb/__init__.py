"""The connector `duckdb`: tables in DuckDB files."""
