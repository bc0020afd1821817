"""The commands. `COMMANDS` in each module has the module's commands by name."""
