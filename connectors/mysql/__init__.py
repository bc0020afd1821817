"""The connector `mysql`: tables of MySQL and MariaDB."""
