// Elements from plain values. Text is always text: nothing here reads HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (value === true) {
      node.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, String(value));
    }
  }
  put(node, ...children);
  return node;
}

// Replace what a node holds; strings become text, null and false nothing.
export function put(node, ...children) {
  const wanted = children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);
  node.replaceChildren(...wanted.map((each) => (each instanceof Node ? each : document.createTextNode(String(each)))));
}

export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

let last = 0;

// An id that no other element has.
export function fresh(word) {
  last += 1;
  return `${word}-${last}`;
}

const ICONS = {
  photo: "M4 5h16a1 1 0 0 1 1 1v12a1 1 0 0 1-1 1H4a1 1 0 0 1-1-1V6a1 1 0 0 1 1-1Zm0 12 5-6 4 4.500 3-3 4 4.500M15.500 9.500h.01",
  camera: "M4 8h3l1.500-2.500h7L17 8h3a1 1 0 0 1 1 1v9a1 1 0 0 1-1 1H4a1 1 0 0 1-1-1V9a1 1 0 0 1 1-1Zm8 8.500a3.500 3.500 0 1 0 0-7 3.500 3.500 0 0 0 0 7Z",
  yes: "m5 12.500 4.500 4.500L19 7.500",
  no: "M6 12h12",
  open: "M12 3.500a8.500 8.500 0 1 0 0 17 8.500 8.500 0 0 0 0-17ZM12 8v4.500M12 16h.01",
  cross: "m6.500 6.500 11 11m0-11-11 11",
  plus: "M12 5v14M5 12h14",
  back: "M9 7 4.500 11.500 9 16M5 11.500h9a5 5 0 0 1 5 5V18",
};

export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

export function button(text, click, attributes = {}) {
  return el("button", { type: "button", ...attributes, on: { click } }, text);
}

// A dialog that is removed when it is closed; resolves to the value given to `close`.
export function ask({ title, body, actions }) {
  return new Promise((resolve) => {
    const heading = fresh("title");
    const close = (value) => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    const dialog = el(
      "dialog",
      { "aria-labelledby": heading, on: { cancel: (event) => { event.preventDefault(); close(undefined); } } },
      el("h2", { id: heading }, title),
      body,
      el("div", { class: "actions" }, actions(close)),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}
