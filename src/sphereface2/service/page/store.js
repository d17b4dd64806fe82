// What the user has chosen, in this tab only: it is gone when the tab is closed.

const PREFIX = "sphereface2.";
const listeners = [];

export const DEFAULTS = { key: "", collection: "default", falseAccepts: "", falseAlarms: "", prior: "" };

export function chosen(name) {
  return sessionStorage.getItem(PREFIX + name) ?? DEFAULTS[name];
}

export function choose(name, value) {
  if (value === DEFAULTS[name]) sessionStorage.removeItem(PREFIX + name);
  else sessionStorage.setItem(PREFIX + name, value);
  for (const listener of listeners) listener(name);
}

export function onChoice(listener) {
  listeners.push(listener);
}
