"""The connector `postgres`: tables of PostgreSQL."""
