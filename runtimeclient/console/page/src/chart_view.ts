// The chart of the result, and its controls. Vega is loaded when the first chart is drawn.

import { CannotDraw, type Chart, type ChartRequest, KINDS, type Kind, makeChart, vegaLite } from "./chart";
import { save } from "./downloads";
import { h, visible } from "./dom";
import type { Result } from "./result";

type View = import("vega").View;

export class ChartView {
  readonly element = h("div", { class: "chart-panel" });
  #result: Result | null = null;
  #view: View | null = null;
  #spec: object = {};
  #draws = 0;
  readonly #kind = h("select", { id: "chart-kind", onchange: () => void this.draw() });
  readonly #x = h("select", { id: "chart-x", onchange: () => void this.draw() });
  readonly #y = h("select", { id: "chart-y", onchange: () => void this.draw() });
  readonly #drawing = h("div", { class: "chart", role: "img", "aria-label": "Chart" });
  readonly #message = h("p", { role: "status" });

  constructor() {
    this.#fill(this.#kind, ["automatic", ...KINDS]);
    const field = (label: string, select: HTMLSelectElement) => h("label", { for: select.id }, `${label} `, select);
    this.element.append(
      h(
        "div",
        { class: "bar" },
        field("Chart", this.#kind),
        field("x", this.#x),
        field("y", this.#y),
        h("button", { type: "button", onclick: () => void this.#save("svg") }, "Save SVG"),
        h("button", { type: "button", onclick: () => void this.#save("png") }, "Save PNG"),
        h("button", { type: "button", onclick: () => void this.#save("json") }, "Save Vega-Lite"),
      ),
      this.#message,
      this.#drawing,
    );
  }

  /** Set the columns of a result. The chart is drawn when its tab is opened. */
  setResult(result: Result): void {
    this.#result = result;
    this.#fill(this.#x, ["automatic", ...result.columns.map(({ name }) => name)]);
    this.#fill(this.#y, ["automatic", ...result.columns.filter(({ isNumeric }) => isNumeric).map(({ name }) => name)]);
  }

  async draw(): Promise<void> {
    const draw = ++this.#draws;
    this.#view?.finalize();
    this.#view = null;
    this.#drawing.replaceChildren();
    if (!this.#result) {
      this.#message.textContent = "Run a statement first.";
      return;
    }
    const { kind, x, y } = this.#request();
    try {
      const chart = firstChart(this.#result, { kind, x, y });
      const [vega, { compile }, { expressionInterpreter }] = await Promise.all([import("vega"), import("vega-lite"), import("vega-interpreter")]);
      if (draw !== this.#draws) return; // the user chose another chart while the library was loading
      this.#spec = vegaLite(chart);
      const spec = compile(this.#spec as never, { config: this.#config() }).spec;
      // The interpreter does not use eval, which the page's policy forbids. Charts never load anything.
      const loader = { ...vega.loader(), load: () => Promise.reject(new Error("Charts cannot load external data.")) };
      this.#view = new vega.View(vega.parse(spec, undefined, { ast: true } as never), {
        expr: expressionInterpreter,
        renderer: "svg",
        container: this.#drawing,
        hover: true,
        loader,
        logLevel: vega.Error,
      } as never);
      await this.#view.runAsync();
      this.#drawing.setAttribute("aria-label", visible(`${chart.kind} chart of ${[...chart.series.keys()].join(", ")} by ${chart.x}`));
      const rest = this.#result.rows - chart.labels.length;
      this.#message.textContent = rest ? `Rows omitted because they have no value: ${rest}.` : "";
    } catch (error) {
      if (!(error instanceof CannotDraw)) throw error;
      this.#message.textContent = visible(error.message);
    }
  }

  #request(): ChartRequest {
    const [kind, x, y] = [this.#kind, this.#x, this.#y].map((select) => (select.selectedIndex > 0 ? select.value : null));
    return { kind: (kind as Kind | null) ?? null, x: x ?? null, y: y ? [y] : [] };
  }

  #fill(select: HTMLSelectElement, values: string[]): void {
    select.replaceChildren(...values.map((value) => h("option", { value }, visible(value))));
  }

  #config(): object {
    const style = getComputedStyle(document.documentElement);
    const [ink, line, accent] = ["--ink", "--line", "--accent"].map((name) => style.getPropertyValue(name).trim());
    const axis = { labelColor: ink, titleColor: ink, domainColor: line, tickColor: line, gridColor: line };
    return { background: "transparent", axis, legend: { labelColor: ink, titleColor: ink }, view: { stroke: line }, mark: { color: accent }, style: { cell: { stroke: line } } };
  }

  async #save(kind: "svg" | "png" | "json"): Promise<void> {
    if (!this.#view) return;
    if (kind === "json") {
      save(new Blob([JSON.stringify(this.#spec)], { type: "application/json" }), "chart.vl.json");
      return;
    }
    if (kind === "svg") {
      save(new Blob([await this.#view.toSVG()], { type: "image/svg+xml" }), "chart.svg");
      return;
    }
    const canvas = (await this.#view.toCanvas(2)) as unknown as HTMLCanvasElement;
    canvas.toBlob((blob) => blob && save(blob, "chart.png"), "image/png");
  }
}

/** Draw the same chart as the client. If it cannot be drawn and the user did not ask for it, draw a line. */
function firstChart(result: Result, request: ChartRequest): Chart {
  try {
    return makeChart(result, request);
  } catch (error) {
    if (!(error instanceof CannotDraw) || request.kind !== null) throw error;
    try {
      return makeChart(result, { ...request, kind: "line" });
    } catch {
      throw error;
    }
  }
}
