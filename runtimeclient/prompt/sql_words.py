"""Words of DuckDB's SQL, for completion, separated by white space."""

KEYWORDS = """
    ALL AND ANTI ANY AS ASC ASOF BETWEEN BY CASE CAST COLLATE COLUMNS CROSS CUBE CURRENT DESC DESCRIBE
    DISTINCT ELSE END ESCAPE EXCEPT EXCLUDE EXISTS EXPLAIN FALSE FILTER FIRST FOLLOWING FROM FULL GROUP
    GROUPING HAVING ILIKE IN INNER INTERSECT INTERVAL IS JOIN LAST LATERAL LEFT LIKE LIMIT NATURAL NOT NULL
    NULLS OFFSET ON OR ORDER OUTER OVER PARTITION PIVOT POSITIONAL PRECEDING QUALIFY RANGE RECURSIVE REPLACE
    RIGHT ROLLUP ROW ROWS SAMPLE SELECT SEMI SETS SHOW SIMILAR SUMMARIZE TABLE TABLES TABLESAMPLE THEN TO TRUE
    TRY_CAST UNBOUNDED UNION UNNEST UNPIVOT USING VALUES WHEN WHERE WINDOW WITH
"""
TYPES = """
    BIGINT BLOB BOOLEAN DATE DECIMAL DOUBLE FLOAT HUGEINT INTEGER JSON SMALLINT STRUCT TEXT TIME TIMESTAMP
    TIMESTAMPTZ TINYINT UBIGINT UINTEGER USMALLINT UTINYINT UUID VARCHAR
"""
FUNCTIONS = """
    abs any_value approx_count_distinct arg_max arg_min array_agg avg bit_count bool_and bool_or ceil coalesce
    concat concat_ws contains corr count cume_dist current_date date_add date_diff date_part date_sub
    date_trunc dayname dense_rank ends_with epoch exp extract first_value floor format generate_series
    greatest hash hour ifnull lag last_value lead least left length list list_contains ln log10 lower lpad
    ltrim max md5 median min minute mode month monthname now ntile nullif percent_rank power printf
    quantile_cont quantile_disc quarter random range rank regexp_extract regexp_matches regexp_replace repeat
    replace reverse round row_number rpad rtrim second sign split sqrt starts_with stddev string_agg strftime
    strptime substring sum time_bucket today trim trunc unnest upper variance week weekday year
"""
