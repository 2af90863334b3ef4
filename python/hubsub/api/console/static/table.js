// A table whose rows are changed in place: focus, selection and place of scrolling stay, and nothing flickers.

import { h, setText } from "./dom.js";
import { visible } from "./format.js";

/**
 * @typedef {Object} Column
 * @property {string} head
 * @property {function(*): (string|{text: string, href?: string, class?: string, title?: string})} cell
 * @property {string} [class] Of all its cells.
 */

export class Table {
  /**
   * @param {string} caption
   * @param {Column[]} columns The first one names the row.
   * @param {string} empty What stands there while there is no row.
   */
  constructor(caption, columns, empty) {
    this.columns = columns;
    this.rows = new Map();
    this.caption = h("caption", {}, caption);
    const heads = columns.map((column) => h("th", { scope: "col", class: column.class }, column.head));
    this.body = h("tbody");
    this.empty = h("p", { class: "quiet" }, empty);
    const table = h("table", {}, this.caption, h("thead", {}, h("tr", {}, ...heads)), this.body);
    const scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
    this.element = h("div", {}, scroll, this.empty);
  }

  /** Shows these rows, in this order. `key` gives what names a row. */
  update(rows, key) {
    this.empty.hidden = rows.length > 0;
    const before = this.rows;
    this.rows = new Map();
    for (const [place, row] of rows.entries()) {
      const name = key(row);
      const cells = before.get(name) ?? this.made();
      before.delete(name);
      this.rows.set(name, cells);
      this.columns.forEach((column, i) => fill(cells.children[i], column.cell(row), column.class));
      if (this.body.children[place] !== cells) this.body.insertBefore(cells, this.body.children[place] ?? null);
    }
    for (const cells of before.values()) cells.remove();
  }

  /** Says something in place of rows. */
  say(text) {
    setText(this.empty, text);
  }

  made() {
    const cells = this.columns.map((_, i) => (i === 0 ? h("th", { scope: "row" }) : h("td")));
    return h("tr", {}, ...cells);
  }
}

function fill(cell, content, className) {
  const { text, href, title, class: own } = typeof content === "string" ? { text: content } : content;
  const names = [className, own].filter(Boolean).join(" ");
  if (cell.className !== names) cell.className = names;
  if (title !== undefined && cell.title !== title) cell.title = title;
  let holder = cell;
  if (href !== undefined) {
    if (!(cell.firstChild instanceof HTMLAnchorElement)) cell.replaceChildren(h("a"));
    holder = cell.firstChild;
    if (holder.getAttribute("href") !== href) holder.setAttribute("href", href);
  }
  setText(holder, visible(text));
}
