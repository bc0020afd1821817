// Saves whole results as files. The statement runs again, so a download has no limit. The local server writes Parquet.

import { type Query, sql } from "./api";
import { h, size } from "./dom";

export const FORMATS = {
  CSV: ["text/csv", "csv"],
  JSON: ["application/json", "json"],
  Arrow: ["application/vnd.apache.arrow.stream", "arrows"],
  Parquet: ["application/vnd.apache.parquet", "parquet"],
} as const;

export type FormatName = keyof typeof FORMATS;

/** Save a result. The file appears when it is complete. A truncated response is an error. */
export async function download(query: Query, format: FormatName, signal: AbortSignal, say: (text: string) => void): Promise<void> {
  const [type, extension] = FORMATS[format];
  const response = await sql(query, type, signal);
  let bytes = 0;
  const counted = new TransformStream<Uint8Array, Uint8Array>({
    transform(chunk, controller) {
      bytes += chunk.length;
      say(`Downloading, ${size(bytes)}`);
      controller.enqueue(chunk);
    },
  });
  // Browsers store large blobs on disk.
  const blob = await new Response(response.body!.pipeThrough(counted)).blob();
  save(new Blob([blob], { type }), `result.${extension}`);
  say(`Downloaded ${size(bytes)} as result.${extension}`);
}

export function save(blob: Blob, name: string): void {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
