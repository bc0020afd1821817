"""The connector `sftp`: files of servers that are reached over SSH."""
