// A table of any length, in which only the visible cells exist. @tanstack/virtual-core finds the visible range.

import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import { copy, count, h, plural, visible, visibleLines } from "./dom";
import { MAX_ROWS, type Result } from "./result";

const ROW_PX = 26;
const HEADER_PX = 46;
const CHARACTER_PX = 8;
const [MIN_WIDTH_PX, MAX_WIDTH_PX, WIDTH_STEP_PX] = [40, 4000, 40];
const MEASURED_ROWS = 50;
const SHOWN_CHARACTERS = 400; // per cell, in one line; Enter shows the whole value
const MAX_COPIED_CELLS = 2_000_000;

type Window = Virtualizer<HTMLElement, HTMLElement>;
interface Position {
  row: number; // -1 is the header
  column: number;
}

interface Cell {
  element: HTMLElement;
  text: Text;
  column: number; // -1: not used
}

interface Slot {
  element: HTMLElement;
  number: HTMLElement; // beside the row, not in it
  cells: Cell[];
  row: number;
  version: number;
}

/** Set an attribute unless it already has this value, because setting it again costs as much as a change. */
function set(element: HTMLElement, name: string, value: string): void {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Return the column whose right edge this is; null if it is something else. */
function gripped(target: EventTarget | null): number | null {
  const cell = target instanceof HTMLElement && target.matches(".grip") ? target.parentElement : null;
  return cell ? Number(cell.getAttribute("aria-colindex")) - 1 : null;
}

const cellId = ({ row, column }: Position): string => `cell:${row}:${column}`;

export class Grid {
  readonly element: HTMLElement;
  #result: Result | null = null;
  #widths: number[] = [];
  #measured = 0; // rows that determined the widths
  #chosen = new Map<string, number>(); // widths that the user set for columns of this name
  #numberWidth = 40;
  #active: Position = { row: 0, column: 0 };
  #anchor: Position = { row: 0, column: 0 };
  #rows: Window;
  #columns: Window;
  #frame = 0;
  #layout = "";
  #header: Slot | null = null;
  #slots: Slot[] = []; // row n is in slot n modulo the number of slots
  #version = 0;
  readonly #body = h("div", { class: "grid-body", role: "presentation" });
  // All in one element, because each sticky one has a layer of its own.
  readonly #numbers = h("div", { class: "grid-numbers", role: "presentation", "aria-hidden": "true" });
  readonly #dialog: HTMLDialogElement;
  readonly #value = h("pre", { tabindex: 0 });
  readonly #title = h("h2", { id: "value-title" });

  constructor(private readonly say: (text: string) => void) {
    this.element = h("div", { class: "grid", role: "grid", tabindex: 0, "aria-label": "Rows", "aria-multiselectable": "true" });
    this.element.append(this.#body);
    this.#dialog = h(
      "dialog",
      { "aria-labelledby": "value-title" },
      this.#title,
      this.#value,
      h("form", { method: "dialog" }, h("button", {}, "Close")),
    );
    document.body.append(this.#dialog);
    this.#rows = this.#window(false);
    this.#columns = this.#window(true);
    for (const each of [this.#rows, this.#columns]) each._didMount();
    this.element.addEventListener("keydown", (event) => this.#key(event));
    this.element.addEventListener("mousedown", (event) => this.#press(event));
    this.element.addEventListener("pointerdown", (event) => this.#drag(event));
    this.element.addEventListener("dblclick", ({ target }) => {
      const resized = gripped(target);
      if (resized !== null) this.#resize(resized, null);
      else if (this.#active.row >= 0) this.#show();
    });
  }

  /** Show a result, starting at its first row. */
  show(result: Result): void {
    this.#result = result;
    this.#active = this.#anchor = { row: 0, column: 0 };
    this.#widths = [];
    this.#measured = 0;
    this.#layout = "";
    this.element.scrollTo(0, 0);
    this.update();
  }

  /** Show the rows that have arrived since the last call. */
  update(): void {
    const result = this.#result;
    if (!result) return;
    if (!this.#widths.length || (this.#measured < MEASURED_ROWS && result.rows > this.#measured)) this.#measure(result);
    this.#numberWidth = Math.max(40, String(result.rows).length * 8 + 16);
    this.#rows.setOptions(this.#options(false, result.rows));
    this.#columns.setOptions(this.#options(true, result.columns.length));
    this.#rows.measure();
    this.#columns.measure();
    if (result.sorting) this.#version++; // rows may have moved
    this.#draw();
  }

  #window(horizontal: boolean): Window {
    return new Virtualizer(this.#options(horizontal, 0));
  }

  #options(horizontal: boolean, length: number) {
    return {
      count: length,
      horizontal,
      getScrollElement: () => this.element,
      estimateSize: horizontal ? (index: number) => this.#widths[index] ?? 100 : () => ROW_PX,
      paddingStart: horizontal ? this.#numberWidth : HEADER_PX,
      scrollPaddingStart: horizontal ? this.#numberWidth : HEADER_PX,
      overscan: horizontal ? 1 : 6,
      observeElementRect,
      observeElementOffset,
      scrollToFn: elementScroll,
      onChange: () => this.#draw(),
    };
  }

  /** Choose column widths from the names and the first rows. */
  #measure(result: Result): void {
    this.#measured = Math.min(result.rows, MEASURED_ROWS);
    this.#widths = result.columns.map((_, column) => this.#widthOf(result, column));
  }

  #widthOf(result: Result, column: number): number {
    const { name, type } = result.columns[column]!;
    let most = Math.max(Math.min(name.length, 40) + 3, type.length);
    for (let row = 0; row < this.#measured; row++) most = Math.max(most, Math.min(result.text(row, column)?.length ?? 4, 40));
    return this.#chosen.get(name) ?? Math.ceil(most * CHARACTER_PX) + 20;
  }

  /** Change the width of a column; null chooses it by the rows again. */
  #resize(column: number, width: number | null): void {
    const result = this.#result!;
    const { name } = result.columns[column]!;
    if (width === null) this.#chosen.delete(name);
    else this.#chosen.set(name, Math.max(MIN_WIDTH_PX, Math.min(MAX_WIDTH_PX, width)));
    this.#widths[column] = this.#widthOf(result, column);
    this.#columns.measure();
    this.#redraw();
  }

  /** Let the pointer change the width of a column, until it is released. */
  #drag({ target, clientX: from }: PointerEvent): void {
    const column = gripped(target);
    if (column === null) return;
    const width = this.#widths[column]!;
    const released = new AbortController();
    const { signal } = released;
    addEventListener("pointermove", ({ clientX }) => this.#resize(column, width + clientX - from), { signal });
    for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => released.abort(), { signal });
  }

  /** Draw in the next frame, because the visible rows may have changed. */
  #redraw(): void {
    this.#version++;
    this.#draw();
  }

  #draw(): void {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#render();
    });
  }

  /**
   * Create cells and their text nodes once and reuse them, and set attributes only if they change. New nodes would take
   * most of the time of a scroll, and their garbage collection would interrupt it.
   */
  #render(): void {
    const result = this.#result;
    if (!result) return;
    for (const each of [this.#rows, this.#columns]) each._willUpdate();
    const columns = this.#columns.getVirtualItems();
    const rows = this.#rows.getVirtualItems();
    const layout = [this.#numberWidth, ...columns.map(({ index, start, size }) => `${index}:${start}:${size}`)].join();
    if (layout !== this.#layout || this.#slots.length < rows.length) {
      this.#layout = layout;
      if (!this.#header || this.#header.cells.length < columns.length || this.#slots.length < rows.length) this.#makeSlots(rows.length, columns.length);
      for (const slot of [this.#header!, ...this.#slots]) this.#place(slot, columns);
      this.#body.style.width = `${this.#columns.getTotalSize()}px`;
      this.element.setAttribute("aria-colcount", String(result.columns.length));
    }
    this.#body.style.height = `${this.#rows.getTotalSize()}px`;
    this.element.setAttribute("aria-rowcount", String(result.rows + 1));
    if (this.#header!.version !== this.#version) this.#fillHeader(this.#header!, result);
    const used = new Set<Slot>();
    for (const { index, start } of rows) {
      const slot = this.#slots[index % this.#slots.length]!;
      used.add(slot);
      if (slot.row !== index || slot.version !== this.#version) this.#fill(slot, result, index, start);
    }
    for (const slot of this.#slots) slot.element.hidden = slot.number.hidden = !used.has(slot);
    const id = cellId(this.#active);
    if (document.getElementById(id)) this.element.setAttribute("aria-activedescendant", id);
    else this.element.removeAttribute("aria-activedescendant");
  }

  #makeSlots(rows: number, columns: number): void {
    this.#slots = Array.from({ length: rows }, () => this.#makeSlot("grid-row", "gridcell", columns));
    this.#header = this.#makeSlot("grid-header", "columnheader", columns);
    this.#header.element.prepend(this.#header.number);
    this.#numbers.replaceChildren(...this.#slots.map(({ number }) => number));
    this.#body.replaceChildren(this.#header.element, this.#numbers, ...this.#slots.map(({ element }) => element));
  }

  #makeSlot(name: string, role: string, columns: number): Slot {
    const number = h("div", { class: "grid-number", role: "presentation", "aria-hidden": "true" });
    const cells = Array.from({ length: columns }, () => {
      const text = new Text();
      return { element: h("div", { role }, text), text, column: -1 };
    });
    const element = h("div", { class: name, role: "row" }, ...cells.map((cell) => cell.element));
    return { element, number, cells, row: -2, version: -1 };
  }

  /** Give the cells of a slot to these columns, and hide the rest. */
  #place(slot: Slot, columns: { index: number; start: number; size: number }[]): void {
    slot.version = -1;
    slot.number.style.width = `${this.#numberWidth}px`;
    slot.cells.forEach((cell, place) => {
      const { index, start, size } = columns[place] ?? { index: -1, start: 0, size: 0 };
      cell.column = index;
      cell.element.hidden = index < 0;
      if (index < 0) return cell.element.removeAttribute("id");
      cell.element.style.left = `${start}px`;
      cell.element.style.width = `${size}px`;
      set(cell.element, "aria-colindex", String(index + 1));
    });
  }

  #fillHeader(header: Slot, result: Result): void {
    header.version = this.#version;
    set(header.element, "aria-rowindex", "1");
    for (const { element: cell, column } of header.cells) {
      if (column < 0) break;
      const { name, type } = result.columns[column]!;
      const sorting = result.sorting?.column === column ? result.sorting : null;
      const sign = sorting ? (sorting.isDescending ? " ▼" : " ▲") : "";
      cell.replaceChildren(h("span", { class: "name" }, visible(name) + sign), h("span", { class: "type" }, type), h("span", { class: "grip", "aria-hidden": "true" }));
      set(cell, "aria-sort", sorting ? (sorting.isDescending ? "descending" : "ascending") : "none");
      this.#mark(cell, { row: -1, column }, "cell");
    }
  }

  #fill(slot: Slot, result: Result, row: number, start: number): void {
    slot.row = row;
    slot.version = this.#version;
    slot.element.style.transform = `translateY(${start}px)`;
    set(slot.element, "aria-rowindex", String(row + 2));
    slot.number.style.transform = `translateY(${start - HEADER_PX}px)`;
    slot.number.textContent = count(row + 1);
    for (const { element: cell, text: shown, column } of slot.cells) {
      if (column < 0) break;
      const text = result.text(row, column);
      shown.data = text === null ? "null" : visible(text.slice(0, SHOWN_CHARACTERS)) + (text.length > SHOWN_CHARACTERS ? "…" : "");
      const isSelected = this.#isSelected(row, column);
      const kind = `${result.columns[column]!.isNumeric ? " number" : ""}${text === null ? " null" : ""}`;
      set(cell, "aria-selected", String(isSelected));
      this.#mark(cell, { row, column }, `cell${kind}${isSelected ? " selected" : ""}`);
    }
  }

  #mark(cell: HTMLElement, position: Position, classes: string): void {
    const isActive = position.row === this.#active.row && position.column === this.#active.column;
    set(cell, "id", cellId(position));
    set(cell, "class", isActive ? `${classes} active` : classes);
  }

  #isSelected(row: number, column: number): boolean {
    const between = (value: number, a: number, b: number) => value >= Math.min(a, b) && value <= Math.max(a, b);
    return between(row, this.#anchor.row, this.#active.row) && between(column, this.#anchor.column, this.#active.column);
  }

  #press(event: MouseEvent): void {
    const found = /^cell:(-?\d+):(\d+)$/.exec((event.target as HTMLElement).closest<HTMLElement>(".cell")?.id ?? "");
    if (!found || event.button !== 0) return;
    if (gripped(event.target) !== null) return event.preventDefault(); // selects no text
    const position = { row: Number(found[1]), column: Number(found[2]) };
    if (position.row < 0) {
      this.#active = this.#anchor = position;
      this.#sort(position.column);
    } else this.#go(position, event.shiftKey);
  }

  #key(event: KeyboardEvent): void {
    const result = this.#result;
    if (!result?.columns.length) return;
    const page = Math.max(1, Math.floor((this.element.clientHeight - HEADER_PX) / ROW_PX) - 1);
    const { row, column } = this.#active;
    const last = { row: result.rows - 1, column: result.columns.length - 1 };
    const isControl = event.ctrlKey || event.metaKey;
    const moves: { [key: string]: Position } = {
      ArrowUp: { row: isControl ? 0 : row - 1, column },
      ArrowDown: { row: isControl ? last.row : row + 1, column },
      ArrowLeft: { row, column: isControl ? 0 : column - 1 },
      ArrowRight: { row, column: isControl ? last.column : column + 1 },
      PageUp: { row: Math.max(row - page, 0), column },
      PageDown: { row: row + page, column },
      Home: isControl ? { row: 0, column: 0 } : { row, column: 0 },
      End: isControl ? last : { row, column: last.column },
    };
    const move = moves[event.key];
    if (move) this.#go(move, event.shiftKey);
    else if (event.key === "Enter" && row < 0) this.#sort(column);
    else if (event.key === "Enter") this.#show();
    else if ((event.key === "+" || event.key === "-") && !isControl)
      this.#resize(column, this.#widths[column]! + (event.key === "+" ? WIDTH_STEP_PX : -WIDTH_STEP_PX));
    else if (event.key === "c" && isControl) void this.copy();
    else if (event.key === "a" && isControl) {
      this.#anchor = { row: 0, column: 0 };
      this.#active = last;
      this.#redraw();
    } else return;
    event.preventDefault();
  }

  #go(position: Position, extends_: boolean): void {
    const result = this.#result!;
    const clamp = (value: number, low: number, high: number) => Math.max(low, Math.min(high, value));
    this.#active = {
      row: clamp(position.row, extends_ ? 0 : -1, result.rows - 1),
      column: clamp(position.column, 0, result.columns.length - 1),
    };
    if (!extends_) this.#anchor = this.#active;
    // Rows may have arrived since the last frame, and nothing scrolls beyond the height.
    this.#body.style.height = `${this.#rows.getTotalSize()}px`;
    if (this.#active.row >= 0) this.#rows.scrollToIndex(this.#active.row);
    this.#columns.scrollToIndex(this.#active.column);
    this.#redraw();
  }

  /** Switch from ascending to descending order, then back to the order of the statement. */
  #sort(column: number): void {
    const result = this.#result!;
    const { sorting } = result;
    if (sorting?.column !== column) result.sort({ column, isDescending: false });
    else result.sort(sorting.isDescending ? null : { column, isDescending: true });
    const what = result.isComplete ? "" : `, only the ${plural(result.rows, "row")} received`;
    const { name } = result.columns[column]!;
    this.say(result.sorting ? `Sorted by ${visible(name)}, ${result.sorting.isDescending ? "descending" : "ascending"}${what}` : "Original order restored");
    this.#redraw();
  }

  #show(): void {
    const result = this.#result;
    const { row, column } = this.#active;
    if (!result || row >= result.rows) return;
    const text = result.text(row, column);
    this.#title.textContent = `${visible(result.columns[column]!.name)}, row ${count(row + 1)}`;
    this.#value.textContent = text === null ? "null" : visibleLines(text.slice(0, 1_000_000));
    this.#dialog.showModal();
  }

  /** Copy the selected cells as tab-separated lines. Tabs and line breaks in values become spaces. */
  async copy(): Promise<void> {
    const result = this.#result;
    if (!result?.rows) return;
    const range = (a: number, b: number) => Array.from({ length: Math.abs(a - b) + 1 }, (_, index) => Math.min(a, b) + index);
    const rows = range(Math.max(this.#anchor.row, 0), Math.max(this.#active.row, 0));
    const columns = range(this.#anchor.column, this.#active.column);
    if (rows.length * columns.length > MAX_COPIED_CELLS) {
      this.say("Too many cells to copy. Download the result instead.");
      return;
    }
    const line = (row: number) => columns.map((column) => (result.text(row, column) ?? "").replace(/[\t\r\n]+/g, " ")).join("\t");
    const text = rows.map(line).join("\n");
    this.say((await copy(text)) ? `Copied ${plural(rows.length * columns.length, "cell")}` : "The browser did not allow copying.");
  }
}

export function cutNotice(result: Result): string {
  return `Only the first ${plural(result.rows, "row")} are shown (the grid is limited to ${count(MAX_ROWS)} rows or 256 MiB). Download the result to get all rows.`;
}
