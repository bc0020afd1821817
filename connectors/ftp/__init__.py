"""The connector `ftp`: files of FTP servers."""
