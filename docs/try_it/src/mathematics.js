// What the panels show: displays of equations, and equations whose terms are buttons.
import katex from "katex";

const OPTIONS = { throwOnError: false, strict: "ignore", maxExpand: 10000 };

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function typeset(latex, display, output = "htmlAndMathml") {
  const holder = element(display ? "div" : "span", { class: display ? "display" : "inline" });
  katex.render(latex, holder, { ...OPTIONS, output, displayMode: display });
  return holder;
}

// A box that scrolls sideways by itself; keyboards reach it only if it is wider than the page.
function scrolling(content, label) {
  const box = element("div", { class: "scroll" }, content);
  new ResizeObserver(() => {
    const wide = box.scrollWidth > box.clientWidth + 1;
    for (const [key, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", label]])
      wide ? box.setAttribute(key, value) : box.removeAttribute(key);
  }).observe(box);
  return box;
}

export function sections(list) {
  return list.map(({ title, latex }) =>
    element("section", { class: "equations" }, element("h2", {}, title), scrolling(typeset(latex, true), title)),
  );
}

const LEADING_SIGN = /^\s*-\s*/;

function term({ latex, text, kind, explanation }, first, show) {
  const negative = LEADING_SIGN.test(latex);
  const sign = negative ? "−" : first ? "" : "+";
  const button = element("button", { type: "button", class: "term", "aria-expanded": "false" });
  const face = typeset(latex.replace(LEADING_SIGN, ""), false, "html");
  face.setAttribute("aria-hidden", "true");
  button.append(element("span", { class: "spoken" }, `${text}: ${kind}`), face);
  button.addEventListener("click", () => show(button, explanation));
  return [...(sign ? [element("span", { class: "sign" }, sign)] : []), button];
}

function explanationOf(text) {
  const lines = text.split("\n");
  const short = element("p", {}, element("code", {}, lines[0]));
  const rest = lines.slice(1).map((line) => element("p", {}, line.trim()));
  return [short, ...rest];
}

export function explained(rows) {
  return rows.map(({ lhs, terms }) => {
    const note = element("div", { class: "explanation", role: "status" });
    const buttons = [];
    const show = (button, explanation) => {
      const open = button.getAttribute("aria-expanded") === "true";
      for (const other of buttons) other.setAttribute("aria-expanded", "false");
      note.replaceChildren(...(open ? [] : explanationOf(explanation)));
      button.setAttribute("aria-expanded", String(!open));
    };
    const parts = terms.flatMap((x, index) => term(x, index === 0, show));
    buttons.push(...parts.filter((x) => x.localName === "button"));
    const row = element("div", { class: "row" }, typeset(lhs, false), element("span", { class: "sign" }, "="), ...parts);
    return element("div", { class: "equation" }, row, note);
  });
}
