"""The connectors `gs` and `gcs`: objects in Google Cloud Storage."""
