// Small tables. Cells contain only text.

import { h, visible } from "./dom";

export type Cell = string | number | null | HTMLElement;

/** Return a table with a caption. The first column contains the row headers. */
export function table(caption: string, headings: string[], rows: Cell[][]): HTMLElement {
  const cell = (value: Cell, index: number) =>
    h(index ? "td" : "th", index ? {} : { scope: "row" }, value instanceof HTMLElement ? value : visible(String(value ?? "")));
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, ...headings.map((heading) => h("th", { scope: "col" }, heading)))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cell)))),
    ),
  );
}
