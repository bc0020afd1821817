// The rows of one statement. Arrow batches arrive one by one, are stored as they are, and are read when displayed.

import { type Data, type Field, type RecordBatch, RecordBatchReader, type Schema, Type } from "apache-arrow";
import { isNumeric, isTime, reader, typeName } from "./values";

/** The limits of the grid. Further rows are dropped, with a notice. Downloads have no limit. */
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
  isCut = false; // the result has more rows than the grid accepts
  isComplete = false;
  sorting: Sorting | null = null;
  #fields: Field[] = [];
  #readers: ReturnType<typeof reader>[] = [];
  #batches: RecordBatch[] = [];
  #starts: number[] = []; // the index of the first row of each batch
  #order: Uint32Array | null = null;

  /** Read a response until its end or the row limit. Call *changed* after the schema and after each batch. */
  async read(response: Response, changed: () => void): Promise<void> {
    const body = response.body!.getReader();
    try {
      const batches = await RecordBatchReader.from(this.#chunks(body));
      await batches.open();
      if (!batches.schema) throw new Error("The response ended before the column names.");
      this.#setSchema(batches.schema);
      changed();
      let isFull = false;
      for await (const batch of batches) {
        if (isFull && batch.numRows) {
          this.isCut = true;
          break;
        }
        this.#add(batch);
        changed();
        isFull = this.rows >= MAX_ROWS || this.bytes >= MAX_BYTES;
      }
    } finally {
      // Stops the statement if there are more rows. Cancelling the batches would not, because apache-arrow does not
      // return the generator of the chunks.
      await body.cancel().catch(() => null);
    }
    this.isComplete = !this.isCut;
    this.sort(this.sorting); // include the rows that arrived after the last sort
  }

  async *#chunks(body: ReadableStreamDefaultReader<Uint8Array>): AsyncIterableIterator<Uint8Array> {
    for (let next = await body.read(); !next.done; next = await body.read()) {
      this.bytes += next.value.length;
      // Unless the last byte comes separately, apache-arrow waits for more bytes before it returns a complete batch.
      yield next.value.subarray(0, -1);
      yield next.value.subarray(-1);
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

  /** Return the exact text of the value at a grid position, or null for a null value. */
  text(row: number, column: number): string | null {
    // Rows that arrived after the sort follow in the order of the statement.
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

  /** Sort the rows, nulls last. With null, restore the order of the statement. */
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

  /** Return the values of a column. Numbers, dates and times compare as in SQL; values of other types are their text. */
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

  /** Compare two values. As in SQL, NaN is the largest number. */
  #ordered(value: number | bigint): number | bigint {
    return Number.isNaN(value) ? Number.MAX_VALUE * 2 : value;
  }
}
