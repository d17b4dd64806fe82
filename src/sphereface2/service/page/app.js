// Starts the page: fills in the words, and shows the view that the address names.

import * as api from "./api.js";
import { Compare } from "./compare.js";
import { el, put } from "./dom.js";
import { problem } from "./notices.js";
import { People } from "./people.js";
import { Search } from "./search.js";
import { SettingsView } from "./settings.js";
import { LANGUAGE } from "./texts.js";
import { say } from "./words.js";

// What is asked for once: the calibration changes only when the service starts again.
const facts = {
  calibration() {
    this.kept ??= api.calibration().catch((error) => {
      this.forget();
      throw error;
    });
    return this.kept;
  },
  forget() {
    this.kept = undefined;
  },
};

const people = new People();
const VIEWS = {
  compare: new Compare(facts),
  search: new Search(facts, { enrolThis: (file) => { location.hash = "people"; show(); people.enrolment.open("", file); } }),
  people,
  settings: new SettingsView(facts),
};

function show() {
  const name = location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "compare";
  const main = document.getElementById("main");
  document.body.dataset.view = name;
  document.title = `${say(`views.${name}`)} · ${say("app.title")}`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (main.firstElementChild === VIEWS[name].node) return;
  put(main, VIEWS[name].node);
  VIEWS[name].enter?.();
}

async function greet() {
  try {
    const { models: [model] } = await api.models();
    put(
      document.getElementById("model"),
      say("app.model", { name: model.name }),
      model.calibrated ? null : el("span", { class: "mark no" }, say("app.notCalibrated")),
    );
    document.querySelector("#banner [role=alert]")?.remove();
  } catch (error) {
    put(document.getElementById("banner"), problem(error, greet));
  }
}

document.documentElement.lang = LANGUAGE;
for (const node of document.querySelectorAll("[data-text]")) put(node, say(node.dataset.text));
for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", say(node.dataset.label));
addEventListener("hashchange", () => {
  show();
  document.getElementById("main").focus();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the view
  document.getElementById("main").focus();
});
document.addEventListener("reached", greet);
show();
greet();
