"""The connector `sqlite`: tables in SQLite files."""
