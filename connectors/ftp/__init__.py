"""The connector `ftp`: files on FTP servers."""
