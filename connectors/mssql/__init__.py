"""The connector `mssql`: tables of Microsoft SQL Server and Azure SQL."""
