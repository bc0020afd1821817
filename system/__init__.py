"""Ground floor: processes, files, sockets, locks and clocks of the operating system. No word of SQL or YAML."""
