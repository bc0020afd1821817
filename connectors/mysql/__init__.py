"""The connector `mysql`: tables in MySQL and MariaDB."""
