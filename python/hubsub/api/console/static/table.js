// A table whose rows are updated in place: focus, selection and scroll position stay, without flicker.

import { h, setText } from "./dom.js";
import { visible } from "./format.js";

/**
 * @typedef {Object} Column
 * @property {string} head
 * @property {function(*): (string|{text: string, href?: string, class?: string, title?: string})} cell
 * @property {string} [class] Class of all its cells.
 */

export class Table {
  /**
   * @param {string} caption
   * @param {Column[]} columns The first one is the row header.
   * @param {string} empty Text shown while there is no row.
   * @param {boolean} [isRanked] Whether the order of rows depends on changing values; it is fixed during hover and focus.
   */
  constructor(caption, columns, empty, isRanked = false) {
    this.columns = columns;
    this.isRanked = isRanked;
    this.rows = new Map();
    const heads = columns.map((column) => h("th", { scope: "col", class: column.class }, column.head));
    this.body = h("tbody");
    this.empty = h("p", { class: "quiet" }, empty);
    const table = h("table", {}, h("caption", {}, h("span", {}, caption)), h("thead", {}, h("tr", {}, ...heads)), this.body);
    const scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
    this.element = h("div", { class: isRanked ? "ranked" : undefined }, scroll, this.empty);
  }

  /** Shows these rows, in this order. `key` returns the identity of a row. */
  update(found, key) {
    const rows = this.isRanked && this.body.matches(":hover, :focus-within") ? this.held(found, key) : found;
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
    // Never shrink: content below must not move with the number of rows.
    if (this.isRanked) this.element.style.minHeight = `${this.element.offsetHeight}px`;
  }

  /** The rows in their displayed order, new ones last, so that a click hits the intended row. */
  held(rows, key) {
    const places = new Map([...this.rows.keys()].map((name, place) => [name, place]));
    const place = (row) => places.get(key(row)) ?? places.size;
    return rows.toSorted((a, b) => place(a) - place(b));
  }

  /** Sets the text shown without rows. */
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
  if (title !== undefined && cell.title !== visible(title)) cell.title = visible(title);
  let holder = cell;
  if (href !== undefined) {
    if (!(cell.firstChild instanceof HTMLAnchorElement)) cell.replaceChildren(h("a"));
    holder = cell.firstChild;
    if (holder.getAttribute("href") !== href) holder.setAttribute("href", href);
  }
  setText(holder, visible(text));
}
