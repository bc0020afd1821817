"""The connector `spark`: tables of clusters that speak Spark Connect."""
