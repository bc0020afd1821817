// Bundles the page and the licences of its libraries into the given directory.
import { copyFile, mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import { build } from "esbuild";

const out = process.argv[2];
await mkdir(out, { recursive: true });
const result = await build({
  entryPoints: ["src/main.ts"],
  outdir: out,
  bundle: true,
  format: "esm",
  splitting: true, // so that the chart library is loaded with the first chart
  minify: true,
  target: "es2023",
  metafile: true,
  legalComments: "none", // LICENSES.txt contains all licences in full
  logLevel: "error",
});
await copyFile("src/index.html", `${out}/index.html`);
await copyFile("src/style.css", `${out}/style.css`);
await copyFile("src/icon.svg", `${out}/icon.svg`);

const names = new Set();
for (const input of Object.keys(result.metafile.inputs)) {
  const found = /(?:^|\/)node_modules\/((?:@[^/]+\/)?[^/]+)\/(?!.*node_modules\/)/.exec(input);
  if (found) names.add(found[1]);
}
const licences = [];
for (const name of [...names].sort()) {
  const directory = `node_modules/${name}`;
  const { version, license } = JSON.parse(await readFile(`${directory}/package.json`, "utf8"));
  const files = (await readdir(directory)).filter((file) => /^(licen[cs]e|notice)/i.test(file)).sort();
  const texts = await Promise.all(files.map((file) => readFile(`${directory}/${file}`, "utf8")));
  licences.push(`${name} ${version} (${license})\n\n${texts.join("\n").trim()}\n`);
}
await writeFile(`${out}/LICENSES.txt`, licences.join(`\n${"-".repeat(80)}\n\n`));
