"""The connector `sqlite`: tables of SQLite files."""
