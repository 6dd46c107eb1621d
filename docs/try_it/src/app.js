// The page "Try it": program at the left, theory at the right. Python runs in a worker.
import "katex/dist/katex.css";
import "./style.css";
import { makeEditor } from "./editor.js";
import { decode, encode } from "./links.js";
import { element, explained, sections } from "./mathematics.js";
import { Python } from "./python.js";
import programs from "./programs.json";

const ROOT = new URL("./", document.baseURI);
const ASSETS = new URL(`assets/${DIGEST}/`, ROOT);
const find = (name) => document.getElementById(`try-${name}`);
const PARTS = {
  "single-site": "Single-site equations",
  "order-parameters": "Order parameters",
  responses: "Responses",
  action: "Action",
  "tensor-program": "Tensor program",
  expansion: "Series in γ₀",
};

const state = { derived: "", doing: "", readyAt: 0, answers: new Map(), part: "single-site", busy: false, explaining: false };
let python, editor;

// -- what is shown -------------------------------------------------------------------------------------

const say = (text) => (find("status").textContent = text);

function refuse(refusal) {
  editor.markLine(refusal ? refusal.line : 0);
  const at = refusal?.line ? `Line ${refusal.line}: ` : "";
  find("refusal").textContent = refusal ? at + refusal.sentence : "";
  find("refusal").hidden = !refusal;
}

function setBusy(busy) {
  state.busy = busy;
  find("derive").disabled = busy;
  find("stop").disabled = !busy;
  enableResults();
}

function enableResults() {
  const none = state.busy || !state.answers.has("single-site");
  for (const name of ["check", "expand", "copy", "explain"]) find(name).disabled = none;
}

function showPart() {
  const answer = state.answers.get(state.part);
  const panel = find("panel");
  for (const [part, tab] of tabs) {
    tab.setAttribute("aria-selected", String(part === state.part));
    tab.tabIndex = part === state.part ? 0 : -1;
  }
  tabs.get("expansion").hidden = !state.answers.has("expansion");
  panel.setAttribute("aria-labelledby", tabs.get(state.part).id);
  find("explain").setAttribute("aria-pressed", String(state.explaining && state.part === "single-site"));
  if (!answer) return panel.replaceChildren();
  if (answer.refusal) return panel.replaceChildren(element("p", { class: "refused" }, answer.refusal.sentence));
  if (state.part === "single-site" && state.explaining) {
    const how = element("p", { class: "hint" }, "Choose a term: from which matrix it comes, and by which rule.");
    return panel.replaceChildren(how, ...explained(answer.explained));
  }
  panel.replaceChildren(...assumptions(answer), ...sections(answer.sections));
}

function assumptions(answer) {
  if (!answer.conditions) return [];
  const stated = answer.conditions.length
    ? answer.conditions
    : ["Nothing is assumed beyond the theory itself: the limit of infinite width at fixed depth, samples and steps."];
  return [element("div", { class: "assumed" }, element("h2", {}, "Assumed"), ...stated.map((x) => element("p", {}, x)))];
}

function clearResults() {
  state.answers.clear();
  state.explaining = false;
  state.part = "single-site";
  find("headline").textContent = "";
  find("checked").replaceChildren();
  find("printed").hidden = true;
  refuse(null);
  showPart();
  enableResults();
}

// -- what is asked -------------------------------------------------------------------------------------

async function ask(part, doing) {
  setBusy(true);
  say(python.ready ? `${doing} …` : find("status").textContent);
  const begun = performance.now();
  state.doing = doing;
  try {
    const answer = await python.ask(state.derived, part);
    return { answer, seconds: ((performance.now() - Math.max(begun, state.readyAt)) / 1000).toFixed(1) };
  } catch {
    return {};
  } finally {
    setBusy(false);
    setTimeout(wantPart);
  }
}

async function derive() {
  if (state.busy) return;
  clearResults();
  state.derived = editor.text();
  history.replaceState(null, "", fragment());
  const { answer, seconds } = await ask("single-site", "Deriving");
  if (!answer) return;
  if (answer.refusal) {
    refuse(answer.refusal);
    return say("The program was refused; the reason is below it.");
  }
  state.answers.set("single-site", answer);
  enableResults();
  find("headline").textContent = answer.headline;
  find("printed").hidden = !answer.printed;
  find("printed").textContent = answer.printed;
  showPart();
  say(`Derived in ${seconds} s by dmft-derive ${answer.version}.`);
}

function choose(part) {
  state.part = part;
  showPart();
  wantPart();
}

// Asks for the part that is shown, once nothing else is running.
async function wantPart() {
  const { part } = state;
  if (state.answers.has(part) || state.busy || !state.answers.has("single-site")) return;
  const { answer, seconds } = await ask(part, `Deriving: ${PARTS[part]}`);
  if (!answer) return;
  state.answers.set(part, answer);
  showPart();
  enableResults();
  say(answer.refusal ? "This part was refused; the reason is given." : `${PARTS[part]}, in ${seconds} s.`);
}

async function check() {
  const { answer, seconds } = await ask("check", "Checking both routes");
  if (!answer) return;
  const sentences = answer.refusal ? [answer.refusal.sentence] : answer.sentences;
  find("checked").replaceChildren(...sentences.map((x) => element("p", {}, x)));
  say(`Both routes checked in ${seconds} s.`);
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} is on the clipboard.`);
  } catch {
    say(`The browser did not allow the copy of ${what.toLowerCase()}.`);
  }
}

function stop() {
  if (!state.answers.has(state.part)) state.part = "single-site";
  python.restart();
  showPart();
  say("Stopped. Python starts again.");
}

// -- programs and links ----------------------------------------------------------------------------------

function fragment() {
  const known = programs.find((x) => x.text === editor.text());
  return known ? `#${known.name}` : `#program=${encode(editor.text())}`;
}

function fromAddress() {
  const given = decodeURIComponent(location.hash.slice(1));
  const known = programs.find((x) => x.name === given);
  if (known) return open(known.text);
  if (!given.startsWith("program=")) return open(programs[0].text);
  try {
    open(decode(given.slice("program=".length)), false);
  } catch {
    open(programs[0].text, false);
    say("The link holds no program that can be read; this is another one.");
  }
}

// A program of the menu is derived at once. One that came with a link waits until it has been read.
function open(text, run = true) {
  editor.set(text);
  clearResults();
  const known = programs.find((x) => x.text === text);
  find("menu").value = known ? known.name : "";
  find("linked").hidden = run || Boolean(known);
  if (run || known) derive();
}

function edited() {
  const known = programs.find((x) => x.text === editor.text());
  find("menu").value = known ? known.name : "";
  refuse(null);
}

// -- the page --------------------------------------------------------------------------------------------

const tabs = new Map();

function makeTabs() {
  for (const [part, title] of Object.entries(PARTS)) {
    const tab = element("button", { type: "button", role: "tab", id: `try-tab-${part}`, "aria-controls": "try-panel" }, title);
    tab.addEventListener("click", () => choose(part));
    tabs.set(part, tab);
    find("tabs").append(tab);
  }
  find("tabs").addEventListener("keydown", (event) => {
    const shown = [...tabs.keys()].filter((part) => !tabs.get(part).hidden);
    const at = shown.indexOf(state.part);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const part = shown[(to + shown.length) % shown.length];
    tabs.get(part).focus();
    choose(part);
  });
}

function fillMenu() {
  find("menu").append(element("option", { value: "" }, "your own"));
  for (const { name, title } of programs) find("menu").append(element("option", { value: name }, title));
  find("menu").addEventListener("change", ({ target }) => {
    const known = programs.find((x) => x.name === target.value);
    if (!known) return;
    if (state.busy) stop();
    open(known.text);
  });
}

function connect() {
  const onClick = (name, act) => find(name).addEventListener("click", act);
  onClick("derive", () => ((find("linked").hidden = true), derive()));
  onClick("stop", stop);
  onClick("link", () => {
    history.replaceState(null, "", fragment());
    copy(location.href, "The link");
  });
  onClick("check", check);
  onClick("expand", () => {
    tabs.get("expansion").hidden = false;
    choose("expansion");
  });
  onClick("copy", () => copy(state.answers.get(state.part)?.latex ?? "", "The LaTeX"));
  onClick("explain", () => {
    state.explaining = !(state.explaining && state.part === "single-site");
    state.part = "single-site";
    showPart();
  });
  onClick("cite-copy", () => copy(find("citation").textContent, "The citation"));
  addEventListener("hashchange", fromAddress);
}

// The page's parts are kept before Python is loaded, so that they are downloaded once.
async function keepParts() {
  if (!navigator.serviceWorker) return;
  const controlled = navigator.serviceWorker.controller
    ? Promise.resolve()
    : new Promise((resolve) => navigator.serviceWorker.addEventListener("controllerchange", resolve, { once: true }));
  const patience = new Promise((resolve) => setTimeout(resolve, 3000));
  try {
    await navigator.serviceWorker.register(new URL("sw.js", ROOT));
    await Promise.race([controlled, patience]);
    const kept = await caches.open(`try-it-${DIGEST}`);
    const loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
    const own = [location.href.split("#")[0], ...loaded].filter((name) => name.startsWith(location.origin));
    for (const name of new Set(own)) if (!(await kept.match(name))) kept.add(name).catch(() => {});
  } catch {
    // a private window: the page works without
  }
}

function startPython() {
  state.readyAt = performance.now();
  python = new Python(new URL("worker.js", ASSETS).href, {
    onProgress(text, share) {
      find("progress").hidden = false;
      find("progress").value = share;
      say(`${text} …`);
    },
    onReady() {
      state.readyAt = performance.now();
      find("progress").hidden = true;
      document.documentElement.dataset.tryReady = String(Math.round(state.readyAt));
      say(state.busy ? `${state.doing} …` : "Python is ready.");
    },
    onFailed(message) {
      find("progress").hidden = true;
      say(`Python stopped: ${message}.`);
    },
  });
}

async function main() {
  makeTabs();
  fillMenu();
  editor = makeEditor(find("editor"), { onChange: edited, onRun: derive });
  connect();
  enableResults();
  await keepParts();
  startPython();
  fromAddress();
}

main();
