// What went wrong, in words and with the way out of it; and whether the service is there at all.

import { health } from "./api.js";
import { button, el, icon, put } from "./dom.js";
import { knows, say } from "./words.js";

const AGAIN_AFTER = 3000; // milliseconds between two attempts to reach a service that is gone

let watching = false;

function banner() {
  return document.getElementById("banner");
}

async function watch() {
  if (watching) return;
  watching = true;
  put(banner(), icon("open"), el("p", {}, say("errors.gone")));
  banner().className = "notice bad";
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, AGAIN_AFTER));
    try {
      await health();
      break;
    } catch (error) {
      if (error.code !== "gone") break;
    }
  }
  watching = false;
  put(banner(), icon("yes"), el("p", {}, say("errors.back")));
  banner().className = "notice good";
  document.dispatchEvent(new Event("reached"));
  setTimeout(() => {
    if (!watching) put(banner());
  }, 4000);
}

export function inWords(error) {
  if (knows(`errors.${error.code}`)) return say(`errors.${error.code}`, { seconds: error.seconds ?? 1 });
  return say("errors.other", { message: error.message });
}

// An error where it happened. retry: what the button does that tries again.
export function problem(error, retry) {
  if (error.code === undefined) throw error;
  if (error.code === "gone") watch();
  const actions = [];
  const needsSettings = error.status === 401 || ["read_only_key", "unknown_collection"].includes(error.code);
  if (needsSettings) actions.push(el("a", { class: "button", href: "#settings" }, say("app.settingsLink")));
  else if (retry) actions.push(waitingButton(error.seconds ?? 0, retry));
  return el(
    "div",
    { class: "notice bad", role: "alert" },
    icon("open"),
    el(
      "div",
      {},
      el("p", {}, inWords(error)),
      error.status >= 500 && error.request ? el("p", { class: "small" }, say("errors.details", { request: error.request })) : null,
      actions.length ? el("div", { class: "actions" }, actions) : null,
    ),
  );
}

// Tries again when it is pressed, not before the service has said that it may.
function waitingButton(seconds, retry) {
  const made = button(say("app.tryAgain"), retry);
  made.disabled = seconds > 0;
  if (seconds > 0) setTimeout(() => { made.disabled = false; }, Math.min(seconds, 600) * 1000);
  return made;
}

// Says something once, to screen readers too.
export function announce(text) {
  put(document.getElementById("announcement"), text);
}
