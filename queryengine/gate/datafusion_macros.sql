-- Functions of DataFusion that DuckDB has under another name, or not at all, as macros over functions of DuckDB.
--
-- A macro has a name that DuckDB does not use, so no statement in DuckDB's own dialect changes its meaning. A body
-- calls what a caller may call; a test passes each through the gate. The names that a body binds begin with `df_`, so
-- that they hide no column of an argument. A body may repeat an argument; `MAX_EXPANSION` of the gate limits how often,
-- in nested calls. Macros whose names begin with `df_` are for other macros, and for statements that the gate rewrites.

-- Numbers
iszero(x) AS x = 0;
nanvl(x, y) AS CASE WHEN isnan(CAST(x AS DOUBLE)) THEN y ELSE x END;
rand() AS random();
signum(x) AS CASE WHEN isnan(CAST(x AS DOUBLE)) THEN CAST('NaN' AS DOUBLE) ELSE CAST(sign(x) AS DOUBLE) END;

-- Conditions
nvl(x, y) AS coalesce(x, y);
nvl2(x, y, z) AS CASE WHEN x IS NOT NULL THEN y ELSE z END;

-- Text
btrim(x) AS trim(x), (x, characters) AS trim(x, characters);
find_in_set(x, list) AS CASE WHEN x IS NOT NULL AND list IS NOT NULL
  THEN coalesce(list_position(string_split(list, ','), x), 0) END;
initcap(x) AS array_to_string(list_transform(regexp_extract_all(x, '[\pL\pN]+|[^\pL\pN]+'),
  lambda df_word: upper(df_word[1]) || lower(df_word[2:])), '');
df_lpad(x, n) AS lpad(x, CAST(n AS INTEGER), ' ');
df_rpad(x, n) AS rpad(x, CAST(n AS INTEGER), ' ');
substr_index(x, delimiter, n) AS CASE WHEN delimiter = '' THEN if(x IS NULL, NULL, '') WHEN delimiter IS NOT NULL THEN
  array_to_string(list_slice(string_split(x, delimiter), if(n < 0, n, 1), if(n < 0, -1, n)), delimiter) END;
substring_index(x, delimiter, n) AS substr_index(x, delimiter, n);

-- Patterns
regexp_like(x, pattern) AS regexp_matches(x, pattern),
  (x, pattern, flags) AS regexp_matches(x, '(?' || flags || ')' || pattern);
df_groups(pattern) AS length(regexp_replace(regexp_replace(pattern, '\\.|\[\^?\]?[^\]]*\]|\(\?[A-Za-z-]*[:)]', '', 'g'),
  '[^(]', '', 'g'));
df_match(x, pattern) AS CASE WHEN regexp_matches(x, pattern) THEN list_filter(
  CAST(json_extract_string(to_json(regexp_extract(x,
    if(df_groups(pattern) = 0, '(' || pattern || ')', pattern),
    ['1', '2', '3', '4', '5', '6', '7', '8', '9', '10', '11', '12', '13', '14', '15', '16', '17', '18', '19', '20'
      ][:greatest(df_groups(pattern), 1)])), '$.*') AS VARCHAR[]),
  lambda df_item: df_item <> '') END;
regexp_match(x, pattern) AS df_match(x, pattern), (x, pattern, flags) AS df_match(x, '(?' || flags || ')' || pattern);
regexp_count(x, pattern) AS len(regexp_extract_all(x, pattern)),
  (x, pattern, start) AS len(regexp_extract_all(substr(x, start), pattern)),
  (x, pattern, start, flags) AS len(regexp_extract_all(substr(x, start), '(?' || flags || ')' || pattern));
df_instr(x, pattern, start, n) AS CASE WHEN start < 1 OR n < 1 THEN error('regexp_instr counts from 1.')
  WHEN regexp_count(x, pattern, start) < n THEN 0
    ELSE start + length(array_to_string(string_split_regex(substr(x, start), pattern)[:n], ''))
      + length(array_to_string(regexp_extract_all(substr(x, start), pattern)[:n - 1], '')) END;
regexp_instr(x, pattern) AS df_instr(x, pattern, 1, 1), (x, pattern, start) AS df_instr(x, pattern, start, 1),
  (x, pattern, start, n) AS df_instr(x, pattern, start, n);

-- Hashes and encodings
digest(x, algorithm) AS CASE WHEN lower(algorithm) = 'md5' THEN unhex(md5(x))
  WHEN lower(algorithm) = 'sha256' THEN unhex(sha256(x))
  ELSE error('The algorithms of digest are md5 and sha256 here.') END;
df_encode(x, format) AS CASE WHEN lower(format) = 'hex' THEN lower(hex(x))
  WHEN lower(format) = 'base64' THEN rtrim(to_base64(unhex(hex(x))), '=')
  ELSE error('The formats of encode are hex and base64.') END;

-- Dates and times
df_months(width) AS date_part('year', width) * 12 + date_part('month', width);
df_bins(months, x, origin) AS CAST(floor(
  ((date_part('year', x) - date_part('year', origin)) * 12 + date_part('month', x) - date_part('month', origin))
  / nullif(months, 0)) AS INTEGER) * months;
df_month_bin(months, x, origin) AS CASE WHEN origin + to_months(df_bins(months, x, origin)) > x
  THEN origin + to_months(df_bins(months, x, origin) - months) ELSE origin + to_months(df_bins(months, x, origin)) END;
df_bin(width, x, origin) AS CASE WHEN df_months(width) > 0 AND width = to_months(df_months(width)) AND isfinite(x)
  AND isfinite(origin) THEN df_month_bin(df_months(width), x, origin) ELSE time_bucket(width, x, origin) END;
date_bin(width, x) AS time_bucket(CAST(width AS INTERVAL), CAST(x AS TIMESTAMP), TIMESTAMP '1970-01-01'),
  (width, x, origin) AS df_bin(CAST(width AS INTERVAL), CAST(x AS TIMESTAMP), CAST(origin AS TIMESTAMP));
-- DuckDB's `%n` is for nanoseconds.
df_units(format) AS replace(replace(replace(replace(replace(replace(format,
  '%n', chr(10)), '%t', chr(9)), '%f', '%f000'), '%.3f', '.%g'), '%.6f', '.%f'), '%.9f', '.%f000');
df_compound(format) AS replace(replace(replace(replace(replace(replace(replace(replace(format,
  '%F', '%Y-%m-%d'), '%T', '%H:%M:%S'), '%R', '%H:%M'), '%h', '%b'), '%D', '%m/%d/%y'), '%x', '%m/%d/%y'),
  '%r', '%I:%M:%S %p'), '%c', '%a %b %e %H:%M:%S %Y');
-- The gate relies on there being no `%n` in what this gives.
df_format(format) AS replace(df_compound(df_units(replace(replace(format, chr(1), ''), '%%', chr(1)))), chr(1), '%%');
date_format(x, format) AS strftime(x, df_format(format));
from_unixtime(x) AS make_timestamp(CAST(x AS BIGINT) * 1000000),
  (x, zone) AS CAST(make_timestamp(CAST(x AS BIGINT) * 1000000) AS TIMESTAMPTZ);
to_char(x, format) AS date_format(x, format);
df_is_number(x) AS typeof(x) IN ('TINYINT', 'SMALLINT', 'INTEGER', 'BIGINT', 'UTINYINT', 'USMALLINT', 'UINTEGER',
  'UBIGINT', 'HUGEINT', 'FLOAT', 'DOUBLE') OR starts_with(typeof(x), 'DECIMAL');
-- Out of range is an error. TRY_CAST alone would give NULL, and CAST alone knows no way from a DATE to a number.
df_int32(x) AS coalesce(TRY_CAST(x AS INTEGER), CAST(CAST(x AS VARCHAR) AS INTEGER));
df_int64(x) AS coalesce(TRY_CAST(x AS BIGINT), CAST(CAST(x AS VARCHAR) AS BIGINT));
to_date(x) AS CASE WHEN df_is_number(x) THEN DATE '1970-01-01' + df_int32(x)
    ELSE CAST(CAST(CAST(CAST(x AS VARCHAR) AS TIMESTAMPTZ) AS TIMESTAMP) AS DATE) END,
  (x, format) AS CAST(strptime(x, format) AS DATE),
  (x, format, format2) AS CAST(strptime(x, [format, format2]) AS DATE),
  (x, format, format2, format3) AS CAST(strptime(x, [format, format2, format3]) AS DATE);
to_time(x) AS CAST(x AS TIME), (x, format) AS CAST(strptime(x, format) AS TIME);
df_micros(x, factor) AS CASE WHEN df_is_number(x) THEN make_timestamp(df_int64(x) * factor)
  ELSE CAST(CAST(CAST(x AS VARCHAR) AS TIMESTAMPTZ) AS TIMESTAMP) END;
df_to_timestamp(x) AS CAST(CAST(x AS TIMESTAMPTZ) AS TIMESTAMP),
  (x, format) AS strptime(x, format),
  (x, format, format2) AS strptime(x, [format, format2]),
  (x, format, format2, format3) AS strptime(x, [format, format2, format3]);
to_timestamp_seconds(x) AS CAST(date_trunc('second', df_micros(x, 1000000)) AS TIMESTAMP_S),
  (x, format) AS CAST(date_trunc('second', strptime(x, format)) AS TIMESTAMP_S);
to_timestamp_millis(x) AS CAST(date_trunc('millisecond', df_micros(x, 1000)) AS TIMESTAMP_MS),
  (x, format) AS CAST(date_trunc('millisecond', strptime(x, format)) AS TIMESTAMP_MS);
to_timestamp_micros(x) AS df_micros(x, 1), (x, format) AS strptime(x, format);
df_nanos(text) AS make_timestamp_ns(epoch_ns(date_trunc('second', CAST(CAST(text AS TIMESTAMPTZ) AS TIMESTAMP)))
  + nanosecond(CAST(text AS TIMESTAMP_NS)) % 1000000000);
to_timestamp_nanos(x) AS CASE WHEN df_is_number(x) THEN make_timestamp_ns(df_int64(x))
  ELSE df_nanos(CAST(x AS VARCHAR)) END, (x, format) AS CAST(strptime(x, format) AS TIMESTAMP_NS);
to_unixtime(x) AS CAST(floor(epoch(CAST(x AS TIMESTAMPTZ))) AS BIGINT),
  (x, format) AS CAST(floor(epoch(strptime(x, format))) AS BIGINT);
to_local_time(x) AS CAST(x AS TIMESTAMP);

-- Arrays
array_any_value(x) AS list_any_value(x);
array_avg(x) AS list_avg(x);
array_sum(x) AS list_sum(x);
array_product(x) AS list_product(x);
array_max(x) AS list_max(x);
array_min(x) AS list_min(x);
array_add(x, y) AS CASE WHEN y IS NOT NULL THEN
  list_transform(x, lambda df_item, df_index: CAST(df_item AS DOUBLE) + y[df_index]) END;
list_add(x, y) AS array_add(x, y);
array_subtract(x, y) AS CASE WHEN y IS NOT NULL THEN
  list_transform(x, lambda df_item, df_index: CAST(df_item AS DOUBLE) - y[df_index]) END;
list_subtract(x, y) AS array_subtract(x, y);
array_scale(x, factor) AS list_transform(x, lambda df_item: CAST(df_item AS DOUBLE) * factor);
list_scale(x, factor) AS array_scale(x, factor);
array_normalize(x) AS list_transform([CAST(x AS DOUBLE[])], lambda df_list:
  list_transform([sqrt(list_inner_product(df_list, df_list))], lambda df_norm:
    list_transform(if(df_norm > 0 OR len(df_list) = 0, df_list, NULL), lambda df_item: df_item / df_norm))[1])[1];
list_normalize(x) AS array_normalize(x);
array_compact(x) AS list_filter(x, lambda df_item: df_item IS NOT NULL);
list_compact(x) AS array_compact(x);
arrays_overlap(x, y) AS list_has_any(x, y);
array_ndims(x) AS CASE WHEN x IS NOT NULL THEN
  len(regexp_extract_all(regexp_extract(typeof(x), '(\[[0-9]*\])+$'), '\[')) END;
list_ndims(x) AS array_ndims(x);
array_dims(x) AS list_transform([CASE WHEN x IS NOT NULL THEN to_json(x) END], lambda df_json:
  [json_array_length(df_json), json_array_length(df_json -> 0), json_array_length(df_json -> 0 -> 0),
    json_array_length(df_json -> 0 -> 0 -> 0)])[1][:array_ndims(x)];
list_dims(x) AS array_dims(x);
cosine_distance(x, y) AS
  nullif(list_cosine_distance(CAST(x AS DOUBLE[]), CAST(y AS DOUBLE[])), CAST('NaN' AS DOUBLE));
inner_product(x, y) AS list_inner_product(CAST(x AS DOUBLE[]), CAST(y AS DOUBLE[]));
dot_product(x, y) AS inner_product(x, y);
array_element(x, n) AS list_extract(x, n);
array_empty(x) AS len(x) = 0;
list_empty(x) AS len(x) = 0;
empty(x) AS len(x) = 0;
df_distinct(x) AS list_transform(
  [list_sort(list_transform(x, lambda df_item, df_index: {'item': df_item, 'at': df_index}))], lambda df_list:
  list_transform(list_sort(list_transform(
    list_filter(df_list, lambda df_item, df_index:
      df_index = 1 OR df_list[df_index - 1]['item'] IS DISTINCT FROM df_item['item']),
    lambda df_item: {'at': df_item['at'], 'item': df_item['item']})), lambda df_item: df_item['item']))[1];
array_union(x, y) AS CASE WHEN x IS NOT NULL AND y IS NOT NULL THEN df_distinct(list_concat(x, y)) END;
list_union(x, y) AS array_union(x, y);
array_except(x, y) AS CASE WHEN x IS NOT NULL THEN df_distinct(list_concat(y, x))[len(df_distinct(y)) + 1:] END;
list_except(x, y) AS array_except(x, y);
array_join(x, delimiter) AS array_to_string(x, delimiter),
  (x, delimiter, no_value) AS array_to_string(
    list_transform(x, lambda df_item: coalesce(CAST(df_item AS VARCHAR), no_value)), delimiter);
list_join(x, delimiter) AS array_join(x, delimiter), (x, delimiter, no_value) AS array_join(x, delimiter, no_value);
list_to_string(x, delimiter) AS array_join(x, delimiter),
  (x, delimiter, no_value) AS array_join(x, delimiter, no_value);
list_length(x) AS len(x);
list_push_back(x, item) AS list_append(x, item);
list_push_front(item, x) AS list_prepend(item, x);
list_pop_back(x) AS array_pop_back(x);
list_pop_front(x) AS array_pop_front(x);
df_array_position(x, item, start) AS CASE WHEN start < 1 THEN error('array_position counts from 1.')
  ELSE list_position(x[start:], item) + start - 1 END;
array_positions(x, item) AS list_filter(list_transform(x, lambda df_item, df_index:
  if(df_item IS NOT DISTINCT FROM item, df_index, NULL)), lambda df_item: df_item IS NOT NULL);
list_positions(x, item) AS array_positions(x, item);
df_last(x, item, n) AS if(n > 0, coalesce(array_positions(x, item)[n], len(x)), 0);
df_remove(x, item, n) AS list_transform([if(item IS NULL, NULL, df_last(x, item, n))], lambda df_end:
  list_filter(if(df_end IS NULL, NULL, x), lambda df_item, df_index:
    df_index > df_end OR df_item IS DISTINCT FROM item))[1];
array_remove(x, item) AS list_transform([list_position(x, item)], lambda df_at:
  list_filter(if(item IS NULL, NULL, x), lambda df_item, df_index: df_index IS DISTINCT FROM df_at))[1];
list_remove(x, item) AS array_remove(x, item);
array_remove_all(x, item) AS list_filter(if(item IS NULL, NULL, x), lambda df_item: df_item IS DISTINCT FROM item);
list_remove_all(x, item) AS array_remove_all(x, item);
array_remove_n(x, item, n) AS df_remove(x, item, n);
list_remove_n(x, item, n) AS df_remove(x, item, n);
array_repeat(item, n) AS CASE WHEN n IS NOT NULL THEN list_resize([item], greatest(n, 0), item) END;
list_repeat(item, n) AS array_repeat(item, n);
df_replace(x, item, new_item, n) AS list_transform([df_last(x, item, n)], lambda df_end:
  list_transform(x, lambda df_item, df_index:
    CASE WHEN df_index <= df_end AND df_item IS NOT DISTINCT FROM item THEN new_item ELSE df_item END))[1];
array_replace(x, item, new_item) AS list_transform([list_position(x, item)], lambda df_at:
  list_transform(x, lambda df_item, df_index: if(df_index = df_at, new_item, df_item)))[1];
list_replace(x, item, new_item) AS array_replace(x, item, new_item);
array_replace_all(x, item, new_item) AS list_transform(x, lambda df_item:
  CASE WHEN df_item IS NOT DISTINCT FROM item THEN new_item ELSE df_item END);
list_replace_all(x, item, new_item) AS array_replace_all(x, item, new_item);
array_replace_n(x, item, new_item, n) AS df_replace(x, item, new_item, n);
list_replace_n(x, item, new_item, n) AS df_replace(x, item, new_item, n);
arrays_zip(x, y) AS list_transform(list_zip(x, y), lambda df_item: struct_pack("1" := df_item[1], "2" := df_item[2])),
  (x, y, z) AS list_transform(list_zip(x, y, z), lambda df_item:
    struct_pack("1" := df_item[1], "2" := df_item[2], "3" := df_item[3]));
df_string_to_array(x, delimiter, no_value) AS list_transform(string_split(x, delimiter),
  lambda df_item: CASE WHEN df_item IS DISTINCT FROM no_value THEN df_item END);
string_to_list(x, delimiter) AS string_split(x, delimiter),
  (x, delimiter, no_value) AS df_string_to_array(x, delimiter, no_value);

-- Aggregates
df_percentile(p, x) AS approx_quantile(CAST(x AS DOUBLE), p);

-- Structs and types
get_field(x, field) AS x[field], (x, field, field2) AS x[field][field2],
  (x, field, field2, field3) AS x[field][field2][field3];
try_cast_to_type(x, sample) AS TRY(cast_to_type(x, sample));
df_arrow_type(text) AS coalesce(map(['VARCHAR', 'BIGINT', 'INTEGER', 'SMALLINT', 'TINYINT', 'UBIGINT', 'UINTEGER',
    'USMALLINT', 'UTINYINT', 'DOUBLE', 'FLOAT', 'BOOLEAN', 'DATE', 'TIME', 'BLOB', 'TIMESTAMP', 'TIMESTAMP_S',
    'TIMESTAMP_MS', 'TIMESTAMP_NS', 'TIMESTAMP WITH TIME ZONE', '"NULL"'],
  ['Utf8', 'Int64', 'Int32', 'Int16', 'Int8', 'UInt64', 'UInt32', 'UInt16', 'UInt8', 'Float64', 'Float32', 'Boolean',
    'Date32', 'Time64(µs)', 'Binary', 'Timestamp(µs)', 'Timestamp(s)', 'Timestamp(ms)', 'Timestamp(ns)',
    'Timestamp(µs, "UTC")', 'Null'])[text], regexp_replace(text, '^DECIMAL\((\d+),(\d+)\)$', 'Decimal128(\1, \2)'));
arrow_typeof(x) AS list_transform([typeof(x)], lambda df_type: CASE WHEN ends_with(df_type, '[]')
  THEN 'List(' || df_arrow_type(df_type[:-3]) || ')' ELSE df_arrow_type(df_type) END)[1];
