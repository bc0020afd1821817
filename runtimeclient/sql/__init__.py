"""SQL text: splitting scripts, parameters, running statements, error positions."""
