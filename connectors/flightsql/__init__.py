"""The connector `flightsql`: tables of servers that speak Arrow Flight SQL."""
