"""The connectors `abfs`, `abfss` and `az`: blobs of Azure Storage."""
