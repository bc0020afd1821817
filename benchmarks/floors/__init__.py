"""Programs that do less than the runtime and its peers: what is measured beside them shows what the rest costs."""
