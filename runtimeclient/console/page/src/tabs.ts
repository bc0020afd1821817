// Tabs that follow https://www.w3.org/WAI/ARIA/apg/patterns/tabs/.

import { h } from "./dom";

export interface Panel {
  name: string;
  element: HTMLElement;
  shown?: () => void; // called when the panel appears
}

export class Tabs {
  readonly #tabs: HTMLElement[];
  #current = 0;

  constructor(
    parent: HTMLElement,
    private readonly panels: Panel[],
  ) {
    this.#tabs = panels.map(({ name }, index) =>
      h("button", { type: "button", role: "tab", id: `tab-${index}`, "aria-controls": `panel-${index}`, onclick: () => this.select(index) }, name),
    );
    panels.forEach(({ element }, index) => {
      element.id = `panel-${index}`;
      element.setAttribute("role", "tabpanel");
      element.setAttribute("aria-labelledby", `tab-${index}`);
    });
    const list = h("div", { role: "tablist", "aria-label": "Results", onkeydown: (event: KeyboardEvent) => this.#key(event) }, ...this.#tabs);
    parent.append(list, ...panels.map(({ element }) => element));
    this.select(0);
  }

  get current(): string {
    return this.panels[this.#current]!.name;
  }

  select(which: number | string): void {
    this.#current = typeof which === "number" ? which : this.panels.findIndex(({ name }) => name === which);
    this.#tabs.forEach((tab, index) => {
      tab.setAttribute("aria-selected", String(index === this.#current));
      tab.tabIndex = index === this.#current ? 0 : -1;
      this.panels[index]!.element.hidden = index !== this.#current;
    });
    this.panels[this.#current]!.shown?.();
  }

  #key(event: KeyboardEvent): void {
    const last = this.#tabs.length - 1;
    const to = { ArrowLeft: this.#current - 1, ArrowRight: this.#current + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.select(to < 0 ? last : to > last ? 0 : to);
    this.#tabs[this.#current]!.focus();
  }
}
