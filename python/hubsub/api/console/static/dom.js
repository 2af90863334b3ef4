// DOM elements. External data becomes text, never markup: no code here or elsewhere sets HTML.

/**
 * Makes an element.
 * @param {string} tag
 * @param {Object<string, *>} attributes `on…` are listeners, undefined and null are left out.
 * @param {...(Node|string)} children
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Sets an element's text only if it differs, so that a selection in it stays. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A card with a heading. */
export function card(title, className, ...children) {
  return h("section", { class: `card ${className}` }, h("h2", {}, title), ...children);
}

/** A list of names over numbers, which `set(name, text)` updates; a new name is appended. */
export class Figures {
  constructor(names, className = "") {
    this.cells = new Map();
    this.element = h("dl", { class: `figures ${className}` });
    for (const name of names) this.set(name, "–");
  }

  set(name, text) {
    if (!this.cells.has(name)) {
      const cell = h("dd");
      this.cells.set(name, cell);
      this.element.append(h("div", {}, h("dt", {}, name), cell));
    }
    setText(this.cells.get(name), text);
  }
}
