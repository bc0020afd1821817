"""The connector `mssql`: tables in Microsoft SQL Server and Azure SQL."""
