"""Results and messages: formats, tables, charts, files and the terminal."""
