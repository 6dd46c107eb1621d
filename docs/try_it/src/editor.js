// The editor: Python with highlighting, one marked line, and a command on Ctrl-Enter.
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { EditorState, StateEffect, StateField } from "@codemirror/state";
import { Decoration, drawSelection, EditorView, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.controlKeyword], class: "code-keyword" },
  { tag: [tags.string, tags.special(tags.string)], class: "code-string" },
  { tag: [tags.number, tags.bool, tags.null], class: "code-number" },
  { tag: tags.comment, class: "code-comment" },
  { tag: [tags.function(tags.variableName), tags.function(tags.propertyName)], class: "code-function" },
]);

const mark = StateEffect.define();
const marked = StateField.define({
  create: () => Decoration.none,
  update(lines, transaction) {
    let next = lines.map(transaction.changes);
    for (const effect of transaction.effects) if (effect.is(mark)) next = effect.value;
    return next;
  },
  provide: (field) => EditorView.decorations.from(field),
});

export function makeEditor(parent, { onChange, onRun }) {
  const run = { key: "Mod-Enter", run: () => (onRun(), true), preventDefault: true };
  const view = new EditorView({
    parent,
    extensions: [
      lineNumbers(),
      history(),
      drawSelection(),
      indentOnInput(),
      bracketMatching(),
      indentUnit.of("    "),
      python(),
      syntaxHighlighting(colours),
      marked,
      EditorView.lineWrapping,
      keymap.of([run, ...defaultKeymap, ...historyKeymap]), // Tab is not bound: it leaves the editor
      EditorView.contentAttributes.of({ "aria-label": "Program in Python", "aria-describedby": "try-keys" }),
      EditorState.tabSize.of(4),
      EditorView.updateListener.of((update) => update.docChanged && onChange()),
    ],
  });
  view.scrollDOM.tabIndex = 0;
  view.scrollDOM.setAttribute("role", "group");
  view.scrollDOM.setAttribute("aria-label", "Editor, scrolls");
  return {
    text: () => view.state.doc.toString(),
    set: (text) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } }),
    focus: () => view.focus(),
    markLine(number) {
      const exists = number >= 1 && number <= view.state.doc.lines;
      const lines = exists
        ? Decoration.set(Decoration.line({ class: "line-refused" }).range(view.state.doc.line(number).from))
        : Decoration.none;
      const effects = [mark.of(lines)];
      if (exists) effects.push(EditorView.scrollIntoView(view.state.doc.line(number).from, { y: "nearest" }));
      view.dispatch({ effects });
    },
  };
}
