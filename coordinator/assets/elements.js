// Elements of the page. Data of a run is only inserted as text.

const SVG = "http://www.w3.org/2000/svg";

export function byId(id) {
  return document.getElementById(id);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value != null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

/** el("td", { class: "n" }, "12") */
export function el(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Sets a text only if it differs, so that screen readers announce only changes. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets an attribute likewise. */
export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/**
 * Makes the children of `parent` match `items`, in order: one element per key, which persists as long as its key, along with the focus
 * inside it.
 */
export function keyed(parent, items, keyOf, make, update) {
  const known = parent.known ?? (parent.known = new Map());
  const wanted = new Set(items.map(keyOf));
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  // Old elements are removed before the others are ordered, so that these need not move.
  for (const [key, node] of known) {
    if (!wanted.has(key)) {
      node.remove();
      known.delete(key);
    }
  }
  let next = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    let node = known.get(key);
    if (!node) {
      node = make(item);
      known.set(key, node);
    }
    update(node, item);
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
  if (focused && document.activeElement !== focused) keepFocus(parent, focused);
}

/** Restores the focus of a moved element; for a removed one, the enclosing region gets it. */
function keepFocus(parent, focused) {
  const to = focused.isConnected ? focused : parent.closest("[tabindex]");
  to?.focus({ preventScroll: true });
}

/** A table with these columns, `{ name, number, of: (row) => text or node }`; rows persist by key. */
export function table(node, caption, columns, rows, keyOf) {
  const names = JSON.stringify(columns.map((column) => column.name));
  if (node.columns !== names) {
    node.columns = names;
    const heads = columns.map((column) => el("th", { scope: "col", class: column.number ? "n" : null }, column.name));
    node.replaceChildren(el("caption", null, caption), el("thead", null, el("tr", null, ...heads)), el("tbody"));
  }
  setText(node.caption, caption);
  const make = () => el("tr", null, ...columns.map((column) => el("td", { class: column.number ? "n" : column.class })));
  const update = (row, item) => {
    setAttribute(row, "class", item.out ? "out" : "");
    columns.forEach((column, at) => {
      const value = column.of(item);
      const cell = row.cells[at];
      if (typeof value === "function") value(cell);
      else setText(cell, value ?? "");
    });
  };
  keyed(node.tBodies[0], rows, keyOf, make, update);
}

/** A colour of the style sheet, for drawing on a canvas. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Calls back when the width of an element changes. */
export function onWidth(node, then) {
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now > 0 && now !== width) {
      width = now;
      then(now);
    }
  }).observe(node);
}
