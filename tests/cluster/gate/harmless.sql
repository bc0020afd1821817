-- Statements that look hostile, or are read by one engine differently than by another, and are admitted: the cluster
-- gets a text that means one thing only. ¶ is a line break.

SELECT 'a\' || reflect("x") --' AS x
=> [{"x":"a' || reflect(\"x\") --"}]
SELECT '\\', reflect AS x, '--' FROM (SELECT 1 AS reflect)
=> [{"\\":"\\","x":1,"--":"--"}]
SELECT r'\', 'x', '' AS y
=> [{"\\":"\\","x":"x","y":""}]
SELECT 'a''b' AS x, "a""b" AS y, 'a' "b" AS z
=> [{"x":"a'b","y":"a\"b","z":"ab"}]
SELECT 'a' 'b' AS x
=> [{"x":"ab"}]
SELECT 'a'¶'b' AS x
=> [{"x":"ab"}]
SELECT '${env:HOME}' AS x, '$' '{x}' AS y
=> [{"x":"${env:HOME}","y":"${x}"}]
SELECT '\u0024{env:HOME}' AS x
=> [{"x":"${env:HOME}"}]
SELECT '-- no comment' AS x, '/* none */' AS y
=> [{"x":"-- no comment","y":"/* none */"}]
SELECT 1 AS `-- no comment`, 2 AS `/* none */`, 3 AS `'`, 4 AS `"`, 5 AS `; DROP TABLE flights`
=> [{"-- no comment":1,"/* none */":2,"'":3,"\"":4,"; DROP TABLE flights":5}]
SELECT 1 -- ' FROM hidden¶ AS x
=> [{"x":1}]
SELECT 1 /* ' FROM hidden */ AS x
=> [{"x":1}]
SELECT /*+ BROADCAST(flights) */ count(*) AS x FROM flights
=> [{"x":1000}]
SELECT '\U0001F600é' AS x, 'Ω' AS y
=> [{"x":"😀é","y":"Ω"}]
SELECT '%\_' LIKE '%\\_' AS x, 'a\%' AS y
=> [{"x":true,"y":"a\\%"}]
SELECT X'27' AS x, x'0a' AS y
=> [{"x":"27","y":"0a"}]
SELECT '\0' AS x, '\n\t' AS y
=> [{"x":"\u0000","y":"\n\t"}]
SELECT 0xZZ FROM (SELECT 1 AS `0xZZ`)
=> [{"0xZZ":1}]
SELECT PRIOR id FROM (SELECT 1 AS PRIOR)
=> [{"id":1}]
SELECT `text`.value FROM (SELECT 1 AS value) AS text
=> [{"value":1}]
WITH text AS (SELECT 1 AS x) SELECT text.x FROM text
=> [{"x":1}]
WITH flights AS (SELECT 1 AS x) SELECT * FROM flights
=> [{"x":1}]
WITH flights AS (SELECT count(*) AS n FROM flights) SELECT * FROM flights
=> [{"n":1000}]
WITH hidden AS (SELECT 1 AS x) SELECT * FROM hidden
=> [{"x":1}]
WITH hidden AS (SELECT 1 AS x), b AS (SELECT * FROM hidden) SELECT * FROM b
=> [{"x":1}]
WITH a AS (WITH hidden AS (SELECT 1 AS x) SELECT * FROM hidden) SELECT * FROM a
=> [{"x":1}]
WITH a AS (SELECT 1 AS x), b AS (WITH a AS (SELECT 2 AS x) SELECT * FROM a) SELECT a.x, b.x AS y FROM a, b
=> [{"x":1,"y":2}]
WITH `Hidden` AS (SELECT 1 AS x) SELECT HIDDEN.x FROM hidden
=> [{"x":1}]
SELECT * FROM (WITH hidden AS (SELECT 1 AS x) SELECT * FROM hidden) y
=> [{"x":1}]
SELECT (WITH hidden AS (SELECT 1 AS x) SELECT x FROM hidden) AS y
=> [{"y":1}]
SELECT hidden.x FROM (SELECT 1 AS x) hidden
=> [{"x":1}]
SELECT main.flights.id, runtime.main.flights.name FROM runtime.main.flights LIMIT 1
=> [{"id":0,"name":"n0"}]
SELECT Flights.ID FROM FLIGHTS LIMIT 1
=> [{"ID":0}]
SELECT - - 1 AS x, 1 - - 1 AS y, - -1 AS z
=> [{"x":1,"y":2,"z":1}]
SELECT 4 / 2 * 2 AS x, ~1 AS y, 7 DIV 2 AS z, 7 % 4 AS w
=> [{"x":4.0,"y":-2,"z":3,"w":3}]
SELECT array(1, 2)[0] AS x, split('a,b', ',')[1] AS y
=> [{"x":1,"y":"b"}]
SELECT transform(array(1, 2), x -> x + 1) AS x
=> [{"x":[2,3]}]
SELECT explode(array(1, 2)) AS x
=> [{"x":1},{"x":2}]
SELECT x FROM (SELECT array(1, 2) AS a) LATERAL VIEW explode(a) t AS x
=> [{"x":1},{"x":2}]
SELECT t.user AS user FROM (SELECT 1 AS `user`) t
=> [{"user":1}]
SELECT * FROM information_schema.tables
=> [{"table_catalog":"runtime","table_schema":"main","table_name":"flights","table_type":"BASE TABLE"}]
SELECT table_name FROM runtime.information_schema.columns WHERE column_name = 'id'
=> [{"table_name":"flights"}]
SELECT * FROM information_schema.schemata
=> [{"catalog_name":"runtime","schema_name":"main"}]
EXPLAIN SELECT * FROM flights
=> [{"plan":"== Physical Plan ==\nProjectionExec: expr=[#3@0 as id, #4@1 as name, #5@2 as carrier]\n  DataSourceExec: file_groups={1 group: [[<path>]]}, projection=[id@0 as #3, name@1 as #4, carrier@2 as #5], file_type=parquet\n"}]
