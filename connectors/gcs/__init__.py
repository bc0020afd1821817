"""The connectors `gs` and `gcs`: objects of Google Cloud Storage."""
