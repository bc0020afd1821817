"""The connector `duckdb`: tables of DuckDB files."""
