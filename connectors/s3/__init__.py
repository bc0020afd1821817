"""The connector `s3`: objects in S3 or on a compatible server."""
