"""The connector `sftp`: files on servers reached over SSH."""
