"""The connector `postgres`: tables in PostgreSQL."""
