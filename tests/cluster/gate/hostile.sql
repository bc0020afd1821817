-- Statements that may not run on a cluster, one a line, below the theme that names them. ¶ is a line break.

[G01 paths as tables]
SELECT * FROM parquet.`/etc/passwd`
SELECT * FROM text.`/etc/hostname`
SELECT * FROM csv.`s3://bucket/secret.csv`
SELECT * FROM json.`/tmp/x.json`
SELECT * FROM orc.`/x`
SELECT * FROM avro.`/x`
SELECT * FROM binaryFile.`/etc/passwd`
SELECT * FROM binaryfile.`/etc/*`
SELECT * FROM delta.`/lake/orders`
SELECT * FROM iceberg.`/lake/orders`
SELECT * FROM xml.`/x.xml`
SELECT * FROM PARQUET.`flights`
SELECT * FROM `parquet`.`/etc/passwd`
SELECT * FROM `parquet.``/etc/passwd```
SELECT * FROM `/etc/passwd`
SELECT * FROM `file:///etc/passwd`
SELECT * FROM `flights.parquet`
SELECT * FROM 'flights.parquet'
SELECT * FROM "flights.parquet"
SELECT * FROM text . `/etc/hostname`
SELECT * FROM text./* c */`/etc/hostname`
SELECT * FROM flights JOIN text.`/etc/hostname` ON true
SELECT * FROM flights, text.`/etc/hostname`
SELECT (SELECT value FROM text.`/etc/hostname`)
SELECT * FROM flights WHERE name IN (SELECT value FROM text.`/etc/hostname`)
SELECT EXISTS (SELECT 1 FROM text.`/etc/hostname`)
WITH a AS (SELECT * FROM text.`/etc/hostname`) SELECT * FROM a
WITH text AS (SELECT 1) SELECT * FROM text.`/etc/hostname`
WITH `/etc/hostname` AS (SELECT 1) SELECT * FROM text.`/etc/hostname`
SELECT * FROM (SELECT * FROM (SELECT * FROM text.`/etc/hostname`))
SELECT 1 UNION SELECT value FROM text.`/etc/hostname`
SELECT 1 EXCEPT SELECT value FROM text.`/etc/hostname`
SELECT * FROM flights ORDER BY (SELECT max(value) FROM text.`/etc/hostname`)
SELECT * FROM flights LIMIT (SELECT count(*) FROM text.`/etc/hostname`)
SELECT * FROM flights GROUP BY (SELECT value FROM text.`/etc/hostname`)
SELECT count(*) FROM flights HAVING (SELECT true FROM text.`/etc/hostname`)
SELECT sum(id) OVER (ORDER BY (SELECT value FROM text.`/etc/hostname`)) FROM flights
SELECT sum(id) FILTER (WHERE (SELECT true FROM text.`/etc/hostname`)) FROM flights
SELECT transform(array(1), x -> (SELECT value FROM text.`/etc/hostname`))
SELECT CASE WHEN (SELECT true FROM text.`/etc/hostname`) THEN 1 END
SELECT * FROM flights f JOIN flights g ON (SELECT true FROM text.`/etc/hostname`)
SELECT * FROM flights, LATERAL (SELECT * FROM text.`/etc/hostname`) x
SELECT * FROM flights LATERAL VIEW explode((SELECT array(value) FROM text.`/etc/hostname`)) t AS x
SELECT * FROM flights PIVOT (max((SELECT value FROM text.`/etc/hostname`)) FOR carrier IN (1))
SELECT * FROM text.`/etc/hostname` PIVOT (count(1) FOR value IN ('a'))
SELECT * FROM text.`/etc/hostname` UNPIVOT (v FOR n IN (value))
SELECT * FROM text.`/etc/hostname` TABLESAMPLE (10 ROWS)
SELECT * FROM VALUES ((SELECT value FROM text.`/etc/hostname`)) AS t(x)
SELECT * FROM range((SELECT count(*) FROM text.`/etc/hostname`))
SELECT interval (SELECT 1 FROM text.`/etc/hostname`) day
SELECT struct((SELECT value FROM text.`/etc/hostname`) AS x)
SELECT name LIKE (SELECT value FROM text.`/etc/hostname`) FROM flights
SELECT 1 BETWEEN 0 AND (SELECT 1 FROM text.`/etc/hostname`)
SELECT try_cast((SELECT value FROM text.`/etc/hostname`) AS INT)
SELECT substring((SELECT value FROM text.`/etc/hostname`) FROM 1)
SELECT * FROM flights WINDOW w AS (ORDER BY (SELECT value FROM text.`/etc/hostname`))
SELECT * FROM flights QUALIFY (SELECT true FROM text.`/etc/hostname`)
SELECT * FROM flights SORT BY (SELECT value FROM text.`/etc/hostname`)
SELECT * FROM flights DISTRIBUTE BY (SELECT value FROM text.`/etc/hostname`)
EXPLAIN SELECT * FROM text.`/etc/hostname`
EXPLAIN EXTENDED SELECT * FROM text.`/etc/hostname`
DESCRIBE text.`/etc/hostname`
DESCRIBE TABLE parquet.`/etc/passwd`
SHOW COLUMNS IN text.`/etc/hostname`
SHOW TABLES IN `/etc`
FROM text.`/etc/hostname`
FROM text.`/etc/hostname` SELECT value
(SELECT * FROM text.`/etc/hostname`)
TABLE text.`/etc/hostname`

[G02 other catalogs, schemas, and relations that are hidden]
SELECT * FROM default.flights
SELECT * FROM spark_catalog.default.flights
SELECT * FROM global_temp.flights
SELECT * FROM system.information_schema.tables
SELECT * FROM system.session.flights
SELECT * FROM information_schema.views
SELECT * FROM information_schema.catalogs
SELECT * FROM hidden
SELECT * FROM HIDDEN
SELECT * FROM `hidden`
SELECT * FROM main.hidden
SELECT * FROM runtime.main.hidden
SELECT * FROM runtime.hidden
SELECT * FROM main.main.flights
SELECT * FROM a.b.c.flights
SELECT * FROM flights f JOIN hidden h ON f.id = h.id
WITH hidden AS (SELECT * FROM hidden) SELECT * FROM hidden
WITH a AS (WITH hidden AS (SELECT 1) SELECT * FROM hidden) SELECT * FROM hidden
WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a
SELECT * FROM (WITH hidden AS (SELECT 1) SELECT 1), hidden
WITH hidden AS (SELECT 1) SELECT * FROM main.hidden
WITH hidden AS (SELECT 1) SELECT * FROM runtime.main.hidden
(WITH hidden AS (SELECT 1) SELECT 1) UNION SELECT * FROM hidden
SELECT 1 UNION (WITH hidden AS (SELECT 1) SELECT 1) UNION SELECT * FROM hidden
WITH RECURSIVE a AS (SELECT * FROM hidden UNION ALL SELECT * FROM a) SELECT * FROM a
WITH a AS (SELECT 1), a AS (SELECT 2) SELECT * FROM a
WITH a AS (SELECT 1), A AS (SELECT 2) SELECT * FROM a
WITH `hid` AS (SELECT 1) SELECT * FROM `hidden`
SELECT * FROM _cte_1
WITH a AS (SELECT 1) SELECT * FROM _cte_1
SELECT * FROM `flights `
SELECT * FROM ` flights`
SELECT * FROM flıghts
SELECT * FROM ﬂights
DESCRIBE hidden
DESCRIBE default.flights
DESCRIBE flights.id
SHOW COLUMNS IN hidden
SHOW COLUMNS FROM flights FROM default
SHOW TABLES IN default
SHOW TABLES LIKE '*'
SHOW TABLES IN main LIKE '*'
SHOW TABLE EXTENDED LIKE '*'
SHOW VIEWS
SHOW VIEWS IN global_temp
SHOW CREATE TABLE flights
SHOW PARTITIONS flights
SHOW TBLPROPERTIES flights
SHOW FUNCTIONS
SHOW ALL FUNCTIONS
SHOW SCHEMAS LIKE '*'
SHOW CATALOGS LIKE '*'
SHOW CACHED TABLES
SHOW CURRENT NAMESPACE
SHOW PROCEDURES
SHOW
DESCRIBE
DESCRIBE EXTENDED flights
DESCRIBE FORMATTED flights
DESCRIBE TABLE EXTENDED flights
DESCRIBE DATABASE default
DESCRIBE SCHEMA EXTENDED default
DESCRIBE CATALOG spark_catalog
DESCRIBE FUNCTION EXTENDED upper
DESCRIBE QUERY SELECT * FROM text.`/etc/hostname`
DESCRIBE DETAIL flights
DESCRIBE HISTORY flights

[G03 computed names]
SELECT * FROM IDENTIFIER('hidden')
SELECT * FROM IDENTIFIER('hid' || 'den')
SELECT * FROM IDENTIFIER('text.`/etc/hostname`')
SELECT * FROM identifier(:t)
SELECT * FROM `identifier`('hidden')
SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv', 'PATH')
SELECT IDENTIFIER('id') FROM flights
SELECT IDENTIFIER('java.lang.System')
WITH IDENTIFIER('hidden') AS (SELECT 1) SELECT * FROM IDENTIFIER('hidden')
SELECT * FROM :t
SELECT * FROM ?
SELECT * FROM $1
SELECT * FROM ${t}
SELECT * FROM main.IDENTIFIER('hidden')
SELECT * FROM (TABLE hidden)
SELECT * FROM TABLE(hidden)
SELECT * FROM TABLE hidden
TABLE hidden
SELECT * FROM range(TABLE(hidden))
SELECT * FROM f(TABLE(SELECT * FROM hidden))
SELECT * FROM explode(TABLE(hidden))

[G04 strings that engines read differently]
SELECT '\\', ' AS a, x.value FROM text.`/etc/hostname` AS x --' AS b FROM hidden
SELECT r'\' , reflect('java.lang.System','getenv','HOME') , ''
SELECT R"\" , reflect('a','b'), ""
SELECT 'a''b', reflect('x','y'), 'c'
SELECT "a""b", reflect('x','y'), "c"
SELECT $$ ' $$, reflect('a','b'), $$ ' $$
SELECT $x$ ' $x$ FROM hidden
SELECT E'\'' FROM hidden
SELECT U&'\0027' FROM hidden
SELECT N'x' FROM hidden
SELECT b'\'' FROM hidden
SELECT q'[ ' ]', reflect('a','b')
SELECT 'a' 'b' FROM text.`/etc/hostname`
SELECT '\u0027', reflect('a','b')
SELECT '\047 || reflect("a","b") || \047' FROM hidden
SELECT '\U00000027' FROM hidden
SELECT '\' FROM flights
SELECT "\" FROM flights
SELECT `a`` FROM flights
SELECT 'unclosed
SELECT "unclosed
SELECT `unclosed
SELECT 'a'¶'b' FROM hidden
SELECT 'a' -- '¶'b' FROM hidden
SELECT 1 AS `a``, x.value FROM text.``/etc/hostname`` x --`
SELECT 1 AS `${a}`
SELECT `${system:user.home}` FROM flights
SELECT ${env:HOME}
SELECT ${hiveconf:x} FROM flights
SELECT ${ 'x' }
SELECT {{ x }}
SELECT {% raw %} 1
SELECT X'0G'
SELECT X'0' FROM flights
SELECT 1e
SELECT 1a b c
SELECT 'x' COLLATE text.`/etc/hostname`

[G05 comments and hints]
SELECT 1 /* ' */ FROM hidden
SELECT 1 -- \¶FROM hidden
SELECT 1 --¶; DROP TABLE flights
SELECT /* /* */ 1 FROM hidden */ FROM hidden
SELECT 1 /* unclosed
SELECT /*! 1 */ 1 FROM hidden
SELECT /*+ BROADCAST(flights) */ * FROM hidden
SELECT 1 FROM /* x */ text./* y */`/etc/hostname`
SELECT /* sqlglot.anonymous */ reflect /* sqlglot.anonymous */ ('a', 'b')
SELECT reflect('a', 'b') /* sqlglot.anonymous */
SELECT 1 # FROM hidden
SELECT 1 // FROM hidden
/* c */ INSERT INTO flights VALUES (1)
-- c¶DROP TABLE flights
SELECT 1 ;;; SELECT 2
; SELECT 1
SELECT 1; --¶SELECT 2
SELECT 1 \; SELECT 2

[G06 programs, methods, and code of users]
SELECT TRANSFORM(id) USING 'cat /etc/passwd' AS x FROM flights
SELECT TRANSFORM(id) USING 'cat' FROM flights
SELECT TRANSFORM(*) ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' USING 'cat' AS (a STRING) FROM flights
FROM flights MAP id USING 'cat' AS x
FROM flights REDUCE id USING 'cat' AS x
MAP id USING 'cat' AS x FROM flights
FROM (SELECT id FROM flights) SELECT TRANSFORM(id) USING 'sh -c id' AS x
SELECT transform (id) using 'cat' as (x) from flights
SELECT reflect('java.lang.System', 'getenv', 'PATH')
SELECT java_method('java.lang.Runtime', 'getRuntime')
SELECT try_reflect('java.lang.System', 'exit', 1)
SELECT `reflect`('a', 'b')
SELECT REFLECT('a', 'b')
SELECT rEfLeCt ('a', 'b')
SELECT builtin.reflect('a', 'b')
SELECT system.builtin.reflect('a', 'b')
SELECT `system`.`builtin`.`reflect`('a', 'b')
SELECT a.reflect('a', 'b') FROM flights a
SELECT transform(array(1), x -> reflect('a', 'b'))
SELECT sum(reflect('a', 'b')) OVER () FROM flights
SELECT * FROM flights ORDER BY reflect('a', 'b')
SELECT * FROM flights LATERAL VIEW reflect('a', 'b') t AS x
SELECT * FROM reflect('a', 'b')
SELECT reflect(DISTINCT 'a', 'b')
SELECT reflect('a', 'b') OVER ()
SELECT reflect('a', 'b') FILTER (WHERE true)
SELECT reflect(class => 'a', method => 'b')
SELECT python_udf(1)
SELECT python_worker_logs()
SELECT * FROM python_worker_logs()
SELECT my_udf(id) FROM flights
SELECT default.my_udf(id) FROM flights
SELECT ai_query('m', 'x')
SELECT ai_gen('x')
SELECT ai_classify('a', array('b'))
SELECT http_request('x')
SELECT secret('a', 'b')
SELECT try_secret('a', 'b')
SELECT * FROM my_udtf(1)
SELECT * FROM remote_query('x')
CREATE FUNCTION f AS 'X' USING JAR '/tmp/x.jar'
CREATE TEMPORARY FUNCTION f() RETURNS INT RETURN 1
DECLARE FUNCTION f
ADD JAR '/tmp/x.jar'
ADD FILE '/etc/passwd'
ADD ARCHIVE '/tmp/x.zip'
LIST JARS
LIST FILES
CALL system.run('x')
CALL spark_catalog.system.x()
EXECUTE IMMEDIATE 'SELECT 1'
EXECUTE IMMEDIATE 'SELECT * FROM hidden' INTO x
BEGIN SELECT 1; END
BEGIN NOT ATOMIC SELECT 1; END
BEGIN DECLARE x INT; SET x = 1; SELECT x; END
IF 1 = 1 THEN SELECT 1; END IF
WHILE true DO SELECT 1; END WHILE
DECLARE x INT DEFAULT 1
PREPARE s AS SELECT 1

[G07 files and places of data]
SELECT input_file_name() FROM flights
SELECT input_file_block_start() FROM flights
SELECT input_file_block_length() FROM flights
SELECT _metadata FROM flights
SELECT _metadata.file_path FROM flights
SELECT flights._metadata.file_path FROM flights
SELECT `_METADATA`.file_name FROM flights
SELECT f.`_metadata`.* FROM flights f
SELECT * FROM flights f JOIN flights g USING (_metadata)
SELECT * FROM flights ORDER BY _metadata.file_size
SELECT * FROM flights WHERE _metadata.file_path LIKE '/%'
SELECT struct(_metadata) FROM flights
SELECT * EXCEPT (_metadata) FROM flights
SELECT * FROM flights UNPIVOT (v FOR n IN (_metadata))
SELECT count(*) FROM flights GROUP BY _metadata.file_name
SELECT x._metadata.file_path FROM (SELECT * FROM flights) x
SELECT transform(array(1), y -> _metadata.file_path) FROM flights
SELECT sum(id) OVER (PARTITION BY _metadata.file_path) FROM flights
SELECT * FROM read_files('/etc')
SELECT * FROM read_csv('/etc/passwd')
SELECT * FROM read_parquet('/x')
SELECT * FROM read_json('/x')
SELECT * FROM files('/etc')
SELECT * FROM list_files('/etc')
SELECT * FROM read_kafka(bootstrapServers => 'x')
SELECT * FROM cloud_files('/x', 'json')
SELECT from_protobuf(X'00', 'm', '/etc/passwd')
SELECT to_protobuf(struct(1), 'm', '/etc/passwd')
SELECT from_avro(X'00', '{}', map('avroSchemaUrl', 'file:///etc/passwd'))
SELECT schema_of_avro('{}')
SELECT from_xml('<a/>', 'a INT', map('rowValidationXSDPath', '/etc/passwd'))
SELECT schema_of_xml('<a/>')
SELECT xpath_string('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>', 'a')
SELECT * FROM glob('/*')
SELECT load_file('/etc/passwd')
SELECT pg_read_file('/etc/passwd')

[G08 the engine's own state]
SELECT version()
SELECT current_catalog()
SELECT current_database()
SELECT current_schema()
SELECT current_path()
SELECT current_user()
SELECT current_user
SELECT `current_user`
SELECT `Current_User` FROM flights
SELECT user FROM flights
SELECT `session_user`
SELECT uſer
SELECT `ſeſſİon_uſer`
SELECT `CURRENT_UſER` FROM flights
SELECT user()
SELECT session_user()
SELECT * FROM sql_keywords()
SELECT * FROM collations()
SELECT measure(id) FROM flights
SELECT schema_of_json('[]')
SELECT current_metastore()
SELECT current_recipient()
SELECT is_member('x')
SELECT is_account_group_member('x')
SELECT @@version
SELECT @x
SELECT spark_conf('x')
SELECT getenv('HOME')
SELECT current_setting('x')

[G09 writes, settings, and other statements]
INSERT INTO flights VALUES (1)
INSERT OVERWRITE flights SELECT 1
INSERT OVERWRITE DIRECTORY '/tmp/x' USING csv SELECT 1
INSERT OVERWRITE LOCAL DIRECTORY '/tmp/x' STORED AS ORC SELECT 1
FROM flights INSERT INTO x SELECT *
FROM flights INSERT OVERWRITE DIRECTORY '/tmp/x' USING csv SELECT *
FROM flights INSERT INTO a SELECT * INSERT INTO b SELECT *
WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a
WITH a AS (INSERT INTO t VALUES (1)) SELECT 1
WITH a AS (DELETE FROM flights) SELECT 1
WITH a AS (UPDATE flights SET id = 1) SELECT 1
WITH a AS (DROP TABLE flights) SELECT 1
WITH a AS (SET x = 1) SELECT 1
WITH a AS (SHOW TABLES) SELECT * FROM a
WITH a AS (DESCRIBE flights) SELECT * FROM a
SELECT * FROM (SHOW TABLES)
SELECT * FROM (DESCRIBE flights)
SELECT * FROM (INSERT INTO flights VALUES (1))
SELECT (DELETE FROM flights)
UPDATE flights SET id = 1
DELETE FROM flights
MERGE INTO flights USING x ON true WHEN MATCHED THEN DELETE
TRUNCATE TABLE flights
CREATE TABLE z (a INT)
CREATE TABLE z USING parquet LOCATION '/tmp/z' AS SELECT 1
CREATE TEMPORARY VIEW v AS SELECT 1
CREATE OR REPLACE TEMPORARY VIEW flights USING text OPTIONS (path '/etc/passwd')
CREATE GLOBAL TEMPORARY VIEW v AS SELECT 1
CREATE DATABASE d
CREATE CATALOG c
DROP TABLE flights
DROP VIEW flights
ALTER TABLE flights ADD COLUMN x INT
ALTER VIEW flights AS SELECT 1
RENAME TABLE flights TO x
CACHE TABLE x AS SELECT 1
CACHE LAZY TABLE flights
UNCACHE TABLE flights
CLEAR CACHE
REFRESH TABLE flights
REFRESH '/etc'
REFRESH FUNCTION f
ANALYZE TABLE flights COMPUTE STATISTICS
MSCK REPAIR TABLE flights
LOAD DATA INPATH '/etc/passwd' INTO TABLE flights
EXPORT TABLE flights TO '/tmp/x'
IMPORT TABLE flights FROM '/tmp/x'
COPY INTO flights FROM '/tmp/x'
COPY (SELECT 1) TO '/tmp/x'
OPTIMIZE flights
VACUUM flights RETAIN 0 HOURS
SET spark.sql.ansi.enabled=false
SET
SET -v
SET TIME ZONE 'UTC'
SET VAR x = 1
SET CATALOG c
SET PATH = system.builtin
RESET
RESET spark.sql.ansi.enabled
USE default
USE CATALOG spark_catalog
USE IDENTIFIER('x')
COMMENT ON TABLE flights IS 'x'
GRANT SELECT ON flights TO x
REVOKE SELECT ON flights FROM x
LOCK TABLE flights EXCLUSIVE
UNLOCK TABLE flights
START TRANSACTION
ROLLBACK
SUMMARIZE flights
PIVOT flights ON carrier
ATTACH '/x.db'
PRAGMA x
KILL 1
EXPLAIN INSERT INTO flights VALUES (1)
EXPLAIN CODEGEN SELECT 1
EXPLAIN ANALYZE SELECT 1
EXPLAIN EXPLAIN SELECT 1
EXPLAIN SET x = 1
EXPLAIN SHOW TABLES
EXPLAIN DESCRIBE flights
EXPLAIN
EXPLAIN EXTENDED
EXPLAIN FORMATTED DROP TABLE flights
EXPLAIN SELECT 1; DROP TABLE flights
SELECT * INTO x FROM flights
SELECT 1 INTO OUTFILE '/tmp/x'
SELECT * FROM flights FOR UPDATE
SELECT * FROM flights LOCK IN SHARE MODE
SELECT * FROM STREAM flights
SELECT * FROM STREAM(flights)
SELECT 1; SELECT 2
SELECT 1; DROP TABLE flights
VALUES (1); VALUES (2)

[G10 versions, options and other forms of a table]
SELECT * FROM flights VERSION AS OF 1
SELECT * FROM flights TIMESTAMP AS OF '2020-01-01'
SELECT * FROM flights FOR VERSION AS OF 1
SELECT * FROM flights FOR SYSTEM_TIME AS OF '2020-01-01'
SELECT * FROM flights FOR SYSTEM_VERSION AS OF 1
SELECT * FROM flights@v1
SELECT * FROM `flights@v1`
SELECT * FROM flights WITH ('path' = '/etc/passwd')
SELECT * FROM flights WITH (path = '/etc/passwd')
SELECT * FROM flights OPTIONS (path '/etc/passwd')
SELECT * FROM flights TABLESAMPLE BERNOULLI (10)
SELECT * FROM flights AS f TABLESAMPLE (10 PERCENT)
SELECT * FROM flights CHANGES FROM VERSION 1 TO VERSION 2
SELECT * FROM table_changes('flights', 1)
SELECT * FROM flights PARTITION (a = 1)
SELECT * FROM flights ASOF JOIN flights g ON true
SELECT * FROM flights MATCH_RECOGNIZE (PATTERN (a) DEFINE a AS true)
SELECT * FROM UNNEST(array(1))
SELECT * FROM flights WATERMARK ts DELAY OF INTERVAL 1 DAY
SELECT * FROM default.range(3)
SELECT * FROM system.builtin.range(3)
SELECT * FROM upper('a')
SELECT range(3)
SELECT DISTINCT ON (id) * FROM flights
SELECT * REPLACE (1 AS id) FROM flights
SELECT * RENAME (id AS x) FROM flights
SELECT a:b FROM flights
SELECT a:b.c[0] FROM flights
SELECT a?.b FROM flights
SELECT * FROM flights CONNECT BY PRIOR id = 1
SELECT * FROM flights |> WHERE id = 1
FROM flights |> SELECT id
FROM flights |> AGGREGATE count(*)
SELECT id FROM flights |> EXTEND reflect('a', 'b')
SELECT CAST(1 AS my_type)
SELECT CAST(1 AS default.my_type)
SELECT CAST('x' AS OBJECT)
SELECT CAST('1' AS INT FORMAT 'x')
SELECT CAST(1 AS TIMESTAMP WITHOUT TIME ZONE)
SELECT CONVERT(INT, '1')
SELECT CHAR(1 USING utf8)
SELECT f(a => 1)
SELECT encode(value => 'abc', charset => 'utf-8')
SELECT extract(path FROM name) FROM flights
SELECT INTERVAL '1' parsec
SELECT count(*) FROM flights GROUP BY id WITH TOTALS
SELECT TOP 1 * FROM flights
SELECT * FROM flights FETCH FIRST 1 ROWS ONLY WITH TIES
SELECT SQL_NO_CACHE 1
SELECT AS STRUCT 1
SELECT $1, $x
SELECT :a, ?
SELECT :`a b`
SELECT NEXT VALUE FOR s
SELECT a.b(1)
SELECT a.*() FROM flights a
SELECT (SELECT 1).reflect('a')
SELECT 1 FROM
SELECT FROM WHERE
SELECT 1 +
SELECT (1
SELECT 1)
SELECT ]
SELECT 1 2 3
garbage
