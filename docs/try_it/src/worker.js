// Runs Python in a thread of its own. Receives {id, text, part}; sends {progress}, {ready} and {id, answer}.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const BASE = new URL("./", import.meta.url);
const PACKAGES = "/packages.zip"; // Python imports from the archive as it is

const say = (message) => self.postMessage(message);

async function download(name) {
  const response = await fetch(new URL(name, BASE));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  const total = Number(response.headers.get("Content-Length"));
  const reader = response.body.getReader();
  const pieces = [];
  let received = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    pieces.push(value);
    received += value.length;
    if (total) say({ progress: "Loading SymPy and dmft-derive", share: 0.1 + 0.3 * Math.min(1, received / total) });
  }
  return new Uint8Array(await new Blob(pieces).arrayBuffer());
}

async function start() {
  say({ progress: "Loading Python", share: 0.05 });
  const packages = download("packages.zip");
  const python = await loadPyodide({ indexURL: new URL("pyodide/", BASE).href });
  const archive = await packages;
  say({ progress: "Importing SymPy and dmft-derive", share: 0.6 });
  python.FS.writeFile(PACKAGES, archive);
  python.runPython(`import sys; sys.path.insert(0, "${PACKAGES}"); import derivation`);
  say({ ready: true });
  return python.pyimport("derivation").answer;
}

const started = start();
started.catch((error) => say({ failed: String(error.message ?? error) }));

self.onmessage = async ({ data: { id, text, part } }) => {
  const answer = await started;
  try {
    say({ id, answer: JSON.parse(answer(JSON.stringify({ text, part }))) });
  } catch (error) {
    // Python itself has stopped, for example because memory or the stack ran out
    say({ failed: String(error.message ?? error).trim().split("\n").at(-1) });
  }
};
