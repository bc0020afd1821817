// The exact text of Arrow values, as specified in docs/values.md. Only doubles are read as doubles.

import { type Data, DateUnit, type Field, Precision, TimeUnit, Type, type Vector } from "apache-arrow";

/** Return the text of one value of *data*, or null for a null value. As JSON, strings are quoted. */
type Reader = (data: Data, index: number) => string | null;

// Without this option, a byte order mark at the start of a text would be dropped.
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const bytesOf = (data: Data, index: number): Uint8Array =>
  (data.values as Uint8Array).subarray(data.valueOffsets[index], data.valueOffsets[index + 1]);

const DIGITS = { [TimeUnit.SECOND]: 0, [TimeUnit.MILLISECOND]: 3, [TimeUnit.MICROSECOND]: 6, [TimeUnit.NANOSECOND]: 9 };
const DAY_S = 86400n;
const EXPONENT_FROM = 1e10;
const MAX = 2n ** 63n - 1n;

/** Return a function that reads the values of a field. `isJson` is true for nested values. */
export function reader(type: Field["type"], isJson = false): Reader {
  const read = readerOfType(type, isJson);
  return (data, index) => (type.typeId === Type.Union || data.getValid(index) ? read(data, index) : null);
}

function readerOfType(type: Field["type"], isJson: boolean): Reader {
  const quoted = (read: (data: Data, index: number) => string): Reader =>
    isJson ? (data, index) => JSON.stringify(read(data, index)) : read;
  switch (type.typeId) {
    case Type.Null:
      return () => null;
    case Type.Bool:
      return (data, index) => String(((data.values[index >> 3] ?? 0) >> (index & 7)) % 2 === 1);
    case Type.Int:
      return (data, index) => String(data.values[index]);
    case Type.Float:
      return (data, index) => float(data.values[index], type.precision, isJson);
    case Type.Decimal:
      return (data, index) => decimal(data.values as Uint32Array, index, type.scale);
    case Type.Utf8:
      return quoted((data, index) => decoder.decode(bytesOf(data, index)));
    case Type.Binary:
      return quoted((data, index) => Array.from(bytesOf(data, index), (byte) => byte.toString(16).padStart(2, "0")).join(""));
    case Type.Date:
      if (type.unit === DateUnit.MILLISECOND) break;
      return quoted((data, index) => day(BigInt(data.values[index])));
    case Type.Time:
      return quoted((data, index) => timeOfDay(BigInt(data.values[index]), DIGITS[type.unit as TimeUnit]));
    case Type.Timestamp:
      return quoted((data, index) => timestamp(BigInt(data.values[index]), DIGITS[type.unit as TimeUnit], type.timezone));
    case Type.Dictionary:
      return quoted((data, index) => String((data.dictionary as Vector).get(Number(data.values[index]))));
    case Type.List: {
      const item = reader(type.children[0].type, true);
      return (data, index) => list(data.children[0]!, data.valueOffsets[index]!, data.valueOffsets[index + 1]!, item);
    }
    case Type.FixedSizeList: {
      const item = reader(type.children[0].type, true);
      return (data, index) => list(data.children[0]!, index * type.listSize, (index + 1) * type.listSize, item);
    }
    case Type.Struct: {
      const members = type.children.map((child: Field) => [JSON.stringify(child.name), reader(child.type, true)] as const);
      return (data, index) => {
        const parts = members.map(([name, read]: [string, Reader], n: number) => `${name}:${read(data.children[n]!, index) ?? "null"}`);
        return `{${parts.join(",")}}`;
      };
    }
    case Type.Map: {
      const [key, value] = type.children[0].type.children.map((child: Field, n: number) => reader(child.type, n === 1));
      return (data, index) => map(data, index, key, value);
    }
    case Type.Union: {
      const members = type.children.map((child: Field) => reader(child.type, isJson));
      return (data, index) => {
        const child = type.typeIdToChildIndex[data.typeIds[index]!];
        return members[child](data.children[child]!, index);
      };
    }
  }
  return (_, index) => `? (${String(type)} at ${index})`;
}

function list(items: Data, from: number, to: number, read: Reader): string {
  const parts = [];
  for (let index = from; index < to; index++) parts.push(read(items, index) ?? "null");
  return `[${parts.join(",")}]`;
}

/** Append a number to keys with the same text, as for columns. */
function map(data: Data, index: number, key: Reader, value: Reader): string {
  const [keys, values] = data.children[0]!.children;
  const used = new Map<string, string>();
  for (let at = data.valueOffsets[index]!; at < data.valueOffsets[index + 1]!; at++) {
    const name = key(keys!, at) ?? "null";
    let unique = name;
    for (let number = 1; used.has(unique); number++) unique = `${name}_${number}`;
    used.set(unique, value(values!, at) ?? "null");
  }
  return `{${Array.from(used, ([name, text]) => `${JSON.stringify(name)}:${text}`).join(",")}}`;
}

export function decimal(words: Uint32Array, index: number, scale: number): string {
  let number = 0n;
  for (let word = 3; word >= 0; word--) number = (number << 32n) | BigInt(words[index * 4 + word]!);
  number = BigInt.asIntN(128, number);
  const digits = (number < 0n ? -number : number).toString().padStart(scale + 1, "0");
  const text = scale ? `${digits.slice(0, -scale)}.${digits.slice(-scale)}` : digits;
  return number < 0n ? `-${text}` : text;
}

/** Return the shortest digits that parse to the same number. */
function float(value: number, precision: Precision, isJson: boolean): string | null {
  if (!Number.isFinite(value)) return isJson ? null : String(value);
  if (Object.is(value, -0)) return "-0.0";
  let number = value;
  if (precision === Precision.SINGLE)
    for (let digits = 1; digits < 10; digits++) {
      number = Number(value.toPrecision(digits));
      if (Math.fround(number) === value) break;
    }
  // Like the runtime: from 1e10, integers below 2^53 have all digits, and all other numbers have an exponent.
  if (Math.abs(value) >= EXPONENT_FROM) return Number.isSafeInteger(value) ? `${value}.0` : number.toExponential();
  const text = String(number);
  return /[.e]/.test(text) ? text : `${text}.0`;
}

const floorDiv = (a: bigint, b: bigint): bigint => a / b - (a % b < 0n ? 1n : 0n);

/** Format a day since 1970 in the proleptic Gregorian calendar (https://howardhinnant.github.io/date_algorithms.html). */
function day(days: bigint): string {
  if (days === 2147483647n) return "infinity";
  if (days === -2147483647n) return "-infinity";
  const z = days + 719468n;
  const era = floorDiv(z, 146097n);
  const doe = z - era * 146097n;
  const yoe = (doe - doe / 1460n + doe / 36524n - doe / 146096n) / 365n;
  const doy = doe - (365n * yoe + yoe / 4n - yoe / 100n);
  const mp = (5n * doy + 2n) / 153n;
  const month = mp < 10n ? mp + 3n : mp - 9n;
  const year = yoe + era * 400n + (month <= 2n ? 1n : 0n);
  const two = (number: bigint) => number.toString().padStart(2, "0");
  const digits = (year < 0n ? -year : year).toString();
  const isPlain = year >= 0n && year <= 9999n;
  const text = isPlain ? digits.padStart(4, "0") : `${year < 0n ? "-" : "+"}${digits.padStart(6, "0")}`;
  return `${text}-${two(month)}-${two(doy - (153n * mp + 2n) / 5n + 1n)}`;
}

function timeOfDay(value: bigint, digits: number): string {
  const unit = 10n ** BigInt(digits);
  const seconds = value / unit;
  const two = (number: bigint) => number.toString().padStart(2, "0");
  const text = `${two(seconds / 3600n)}:${two((seconds / 60n) % 60n)}:${two(seconds % 60n)}`;
  const nanoseconds = ((value % unit) * 10n ** BigInt(9 - digits)).toString().padStart(9, "0");
  if (nanoseconds === "000000000") return text;
  return `${text}.${nanoseconds.replace(/(000){1,2}$/, "")}`;
}

function timestamp(value: bigint, digits: number, zone: string | null): string {
  if (value === MAX) return "infinity";
  if (value === -MAX) return "-infinity";
  const unit = DAY_S * 10n ** BigInt(digits);
  const days = floorDiv(value, unit);
  return `${day(days)}T${timeOfDay(value - days * unit, digits)}${zone ? "Z" : ""}`;
}

/** Return the SQL name of a type. */
export function typeName(type: Field["type"]): string {
  switch (type.typeId) {
    case Type.Bool:
      return "boolean";
    case Type.Int:
      return `${type.isSigned ? "" : "u"}${{ 8: "tinyint", 16: "smallint", 32: "integer", 64: "bigint" }[type.bitWidth as 8]}`;
    case Type.Float:
      return type.precision === Precision.SINGLE ? "float" : "double";
    case Type.Decimal:
      return `decimal(${type.precision},${type.scale})`;
    case Type.Utf8:
      return "varchar";
    case Type.Binary:
      return "blob";
    case Type.Date:
      return "date";
    case Type.Time:
      return "time";
    case Type.Timestamp:
      return type.timezone ? "timestamptz" : "timestamp";
    case Type.Dictionary:
      return "enum";
    case Type.List:
    case Type.FixedSizeList:
      return `${typeName(type.children[0].type)}[]`;
    default:
      return String(Type[type.typeId]).toLowerCase();
  }
}

export function isNumeric(type: Field["type"]): boolean {
  return [Type.Int, Type.Float, Type.Decimal].includes(type.typeId);
}

export function isTime(type: Field["type"]): boolean {
  return [Type.Date, Type.Timestamp].includes(type.typeId);
}
