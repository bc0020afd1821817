"""The commands; `COMMANDS` of each module has its own by name."""
