"""The connector `s3`: objects of S3, or of a compatible server."""
