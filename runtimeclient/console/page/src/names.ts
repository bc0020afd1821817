// Names of tables and columns in SQL.

/** The names that DuckDB requires to be quoted, as `duckdb_keywords()` lists them, or that mean something else. */
const RESERVED = new Set(
  (
    "all analyse analyze and anti any array as asc asof asymmetric at authorization binary both by case cast check collate collation " +
    "column concurrently constraint create cross default deferrable desc describe distinct do else end except false fetch for foreign " +
    "freeze from full glob group having ilike in initially inner intersect into is isnull join lambda lateral leading left like limit " +
    "natural not notnull null offset on only or order outer overlaps pivot pivot_longer pivot_wider placing positional primary qualify " +
    "references returning right select semi show similar some summarize symmetric table tablesample then to trailing true union unique " +
    "unpack unpivot user using variadic verbose when where window with"
  ).split(" "),
);

/** Quote a name if SQL requires it. */
export function quote(name: string): string {
  return /^[a-z_][a-z0-9_]*$/.test(name) && !RESERVED.has(name) ? name : `"${name.replaceAll('"', '""')}"`;
}

/** Quote the name of a dataset or view, which may begin with a schema. */
export function quoteRelation(name: string): string {
  return name.split(".").map(quote).join(".");
}
