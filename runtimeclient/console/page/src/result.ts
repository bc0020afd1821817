// The rows of one statement, as Arrow batches that arrive one by one. They are kept as they came, and read when shown.

import { type Data, type Field, type RecordBatch, RecordBatchReader, type Schema, Type } from "apache-arrow";
import { isNumeric, isTime, reader, typeName } from "./values";

/** The most that the grid takes: the rest is cut, with a notice. Downloads have no limit. */
export const MAX_ROWS = 250_000;
export const MAX_BYTES = 256 * 2 ** 20;

export interface Column {
  name: string;
  type: string;
  isNumeric: boolean;
  isTime: boolean;
}

export interface Sorting {
  column: number;
  isDescending: boolean;
}

export class Result {
  columns: Column[] = [];
  rows = 0;
  bytes = 0;
  isCut = false; // there are more rows than the grid takes
  isComplete = false;
  sorting: Sorting | null = null;
  #fields: Field[] = [];
  #readers: ReturnType<typeof reader>[] = [];
  #batches: RecordBatch[] = [];
  #starts: number[] = []; // the number of the first row of each batch
  #order: Uint32Array | null = null;

  /** Read a response until its end, or until there are too many rows. Call *changed* after the schema and each batch. */
  async read(response: Response, changed: () => void): Promise<void> {
    const batches = await RecordBatchReader.from(this.#chunks(response));
    await batches.open();
    if (!batches.schema) throw new Error("The response ended before its columns.");
    this.#setSchema(batches.schema);
    changed();
    let isFull = false;
    for await (const batch of batches) {
      if (isFull && batch.numRows) {
        this.isCut = true;
        await batches.cancel();
        break;
      }
      this.#add(batch);
      changed();
      isFull = this.rows >= MAX_ROWS || this.bytes >= MAX_BYTES;
    }
    this.isComplete = !this.isCut;
    this.sort(this.sorting); // with the rows that came after it
  }

  async *#chunks(response: Response): AsyncIterableIterator<Uint8Array> {
    const reader = response.body!.getReader();
    try {
      for (let next = await reader.read(); !next.done; next = await reader.read()) {
        this.bytes += next.value.length;
        // Of a batch that is all that has arrived, apache-arrow waits for more bytes unless the last one comes by itself.
        yield next.value.subarray(0, -1);
        yield next.value.subarray(-1);
      }
    } finally {
      await reader.cancel().catch(() => null); // the statement stops if rows are left
    }
  }

  #setSchema(schema: Schema): void {
    this.#fields = schema.fields;
    this.#readers = schema.fields.map(({ type }) => reader(type));
    this.columns = schema.fields.map(({ name, type }) => ({
      name,
      type: typeName(type),
      isNumeric: isNumeric(type),
      isTime: isTime(type),
    }));
  }

  #add(batch: RecordBatch): void {
    if (!batch.numRows) return;
    this.#batches.push(batch);
    this.#starts.push(this.rows);
    this.rows += batch.numRows;
  }

  /** Return the exact text of a value by its place in the grid; null for null. */
  text(row: number, column: number): string | null {
    // Rows that came after the sort follow in the order of the statement.
    const [data, index] = this.#find(this.#order?.[row] ?? row, column);
    return this.#readers[column]!(data, index);
  }

  #find(row: number, column: number): [Data, number] {
    let [low, high] = [0, this.#starts.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#starts[middle]! <= row) low = middle;
      else high = middle - 1;
    }
    return [this.#batches[low]!.data.children[column]!, row - this.#starts[low]!];
  }

  /** Show the rows in another order, nulls last; null restores the order of the statement. */
  sort(sorting: Sorting | null): void {
    this.sorting = sorting;
    if (!sorting) {
      this.#order = null;
      return;
    }
    const { column, isDescending } = sorting;
    const keys = this.#keys(column);
    const sign = isDescending ? -1 : 1;
    this.#order = Uint32Array.from({ length: this.rows }, (_, row) => row).sort((a, b) => {
      const [x, y] = [keys[a], keys[b]];
      if (x === null || y === null || x === undefined || y === undefined) return Number(x === null) - Number(y === null) || a - b;
      return x < y ? -sign : x > y ? sign : a - b;
    });
  }

  /** Values of a column that compare as in SQL: exact numbers and texts. */
  #keys(column: number): (number | bigint | string | null)[] {
    const type = this.#fields[column]!.type;
    const raw = type.typeId === Type.Int || type.typeId === Type.Float || isTime(type) || type.typeId === Type.Time;
    const keys: (number | bigint | string | null)[] = [];
    for (const batch of this.#batches) {
      const data = batch.data.children[column]!;
      for (let index = 0; index < batch.numRows; index++) {
        if (!data.getValid(index)) keys.push(null);
        else if (raw) keys.push(this.#ordered(data.values[index]));
        else {
          const text = this.#readers[column]!(data, index);
          keys.push(type.typeId === Type.Decimal && text !== null ? BigInt(text.replace(".", "")) : text);
        }
      }
    }
    return keys;
  }

  /** NaN is the largest number, as in SQL. */
  #ordered(value: number | bigint): number | bigint {
    return Number.isNaN(value) ? Number.MAX_VALUE * 2 : value;
  }
}
