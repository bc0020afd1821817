// Chooses a chart for a result and builds its Vega-Lite specification, as `querykeep sql -o chart.svg` does in
// runtimeclient/output/charts.py. A test compares the two.

import { visible } from "./dom";
import type { Result } from "./result";

export type Kind = "bar" | "line" | "point" | "area";
export const KINDS: Kind[] = ["line", "bar", "point", "area"];
const MAX_POINTS = 20_000;
const MAX_BARS = 100;
const MAX_SERIES = 8;
const [MAX_NUMBER, MIN_NUMBER] = [1e300, 1e-300];
const [WIDTH, HEIGHT, LETTER_WIDTH] = [640, 360, 8];

export interface ChartRequest {
  kind: Kind | null; // null: the types decide
  x: string | null;
  y: string[];
}

type Scale = "number" | "time" | "text";

export interface Chart {
  kind: Kind;
  x: string;
  scale: Scale;
  labels: string[];
  xs: number[];
  series: Map<string, (number | null)[]>;
}

export class CannotDraw extends Error {}

type Values = { texts: (string | null)[]; isNumber: boolean };

/** Choose the columns and read their values. Raises CannotDraw with the reason. */
export function makeChart(result: Result, request: ChartRequest): Chart {
  if (result.rows > MAX_POINTS) throw new CannotDraw("A chart has at most 20,000 rows: group the rows, or add LIMIT or USING SAMPLE.");
  if (!result.rows) throw new CannotDraw("There is nothing to draw: the result has no rows.");
  if (request.x !== null && request.y.includes(request.x)) throw new CannotDraw(`The column ${request.x} cannot be both x and y.`);
  const values = new Map<string, Values>();
  result.columns.forEach((column, index) => {
    const texts = Array.from({ length: result.rows }, (_, row) => drawable(result.text(row, index), column.isNumeric));
    values.set(column.name, { texts, isNumber: column.isNumeric || texts.every((text) => text === null) });
  });
  const names = [...values.keys()];
  const numeric = names.filter((name) => values.get(name)!.isNumber);
  const x = request.x ?? chooseX(names, numeric, values, request);
  const scale = scaleOf(values.get(x)!);
  const kind = request.kind ?? (scale === "text" ? "bar" : "line");
  if (kind === "point" && scale === "text") throw new CannotDraw(`A point chart needs numbers or times for x, but ${x} has other values. Try a bar chart.`);
  if (kind === "bar" && result.rows > MAX_BARS) throw new CannotDraw(`A bar chart has at most ${MAX_BARS} rows: group the rows, or add LIMIT.`);
  const ys = request.y.length ? request.y : numeric.filter((name) => name !== x).slice(0, kind === "point" ? 1 : MAX_SERIES);
  if (!ys.length) throw new CannotDraw("A chart needs a numeric column for y in addition to x, but the result has none.");
  const series = new Map(ys.map((name) => [name, values.get(name)!.texts.map(toNumber)]));
  const kept = Array.from({ length: result.rows }, (_, row) => row).filter(
    (row) => (values.get(x)!.texts[row] !== null || kind === "bar") && ys.some((name) => series.get(name)![row] !== null),
  );
  if (!kept.length) throw new CannotDraw("There is nothing to draw: every row lacks a value.");
  const position = (row: number): number => {
    const text = values.get(x)!.texts[row] ?? null;
    return (scale === "number" ? toNumber(text) : moment(text)) ?? row;
  };
  const shown = kind === "bar" ? "bar" : scale;
  return {
    kind,
    x,
    scale,
    labels: kept.map((row) => values.get(x)!.texts[row] ?? "null"),
    xs: kept.map((row) => (shown === "number" || shown === "time" ? position(row) : row)),
    series: new Map(ys.map((name) => [name, kept.map((row) => series.get(name)![row]!)])),
  };
}

/** JSON does not support NaN or infinities. */
function drawable(text: string | null, isNumber: boolean): string | null {
  return isNumber && text !== null && /^-?[NI]/.test(text) ? null : text;
}

function chooseX(names: string[], numeric: string[], values: Map<string, Values>, request: ChartRequest): string {
  const free = names.filter((name) => !request.y.includes(name));
  const isBar = request.kind === "bar";
  const text = free.find((name) => !numeric.includes(name));
  if ((isBar || request.kind === null) && text !== undefined) return text;
  const fitting = free.filter((name) => isBar || scaleOf(values.get(name)!) !== "text");
  if (!free.length) throw new CannotDraw("A chart needs a column for x in addition to those for y.");
  const isOnlyY = !request.y.length && numeric.length === 1 && fitting.length === 1 && fitting[0] === numeric[0];
  return fitting.length && !isOnlyY ? fitting[0]! : free[0]!;
}

function scaleOf({ texts, isNumber }: Values): Scale {
  if (isNumber) return "number";
  return texts.every((text) => text === null || moment(text) !== null) ? "time" : "text";
}

function toNumber(text: string | null): number | null {
  if (text === null) return null;
  const number = Number(text);
  if (Math.abs(number) > MAX_NUMBER) throw new CannotDraw("A number in the result is too large to draw.");
  return Math.abs(number) >= MIN_NUMBER ? number : 0;
}

/** Parse a date or timestamp as milliseconds since 1970. Without a time zone, it is in UTC. */
function moment(text: string | null): number | null {
  const found = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(Z|[+-]\d\d:?\d\d)?)?$/.exec(text ?? "");
  if (!found) return null;
  const [, day, time = "00:00:00", zone = "Z"] = found;
  const fraction = /\.(\d+)/.exec(time)?.[1] ?? "";
  const whole = Date.parse(`${day}T${time.replace(/\.\d+/, "")}${zone}`);
  return Number.isNaN(whole) ? null : whole + Number(`0.${fraction.slice(0, 6) || 0}`) * 1000;
}

/** Return a title that Vega-Lite can put into its expressions, where it escapes quotes but no backslashes. */
function titleOf(name: string): string {
  return name.replaceAll("\\", "\u29f5");
}

/** Describe a chart in Vega-Lite 6. Fields do not use column names, which Vega may parse as paths. */
export function vegaLite(chart: Chart): object {
  const isBar = chart.kind === "bar";
  const series = [...chart.series].map(([name, numbers]) => ({ name: visible(name), numbers })); // XML has no control characters
  const names = series.map(({ name }) => name);
  const xs: (string | number)[] = isBar || chart.scale === "text" ? chart.labels.map(visible) : chart.xs;
  const values = series.flatMap(({ name, numbers }) => numbers.map((y, index) => ({ x: xs[index], y, series: name })));
  const type = isBar ? "nominal" : { number: "quantitative", time: "temporal", text: "nominal" }[chart.scale];
  const fits = chart.labels.reduce((sum, label) => sum + label.length, 0) * LETTER_WIDTH < WIDTH;
  const x = {
    field: "x",
    title: titleOf(visible(chart.x)),
    type,
    ...(type === "nominal"
      ? { sort: null, axis: { labelAngle: fits ? 0 : -40 } }
      : { scale: type === "temporal" ? { type: "utc" } : { zero: false } }),
  };
  const encoding = {
    x,
    y: { field: "y", title: names.length === 1 ? titleOf(names[0]!) : null, type: "quantitative" },
    tooltip: [{ field: "x", title: titleOf(visible(chart.x)), type }, { field: "y", type: "quantitative" }],
    ...(names.length > 1 ? { color: { field: "series", type: "nominal", title: null, sort: names } } : {}),
    ...(names.length > 1 && isBar ? { xOffset: { field: "series", type: "nominal", sort: names } } : {}),
  };
  return {
    $schema: "https://vega.github.io/schema/vega-lite/v6.json",
    width: WIDTH,
    height: HEIGHT,
    data: { values },
    mark: chart.kind,
    encoding,
  };
}
