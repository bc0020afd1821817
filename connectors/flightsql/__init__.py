"""The connector `flightsql`: tables on Arrow Flight SQL servers."""
