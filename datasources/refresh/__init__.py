"""Keep datasets fresh: schedule, runs, history, control."""
