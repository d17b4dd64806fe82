// The key, the collection, and the thresholds in words.

import * as api from "./api.js";
import { button, el, fresh, icon, put } from "./dom.js";
import { announce, problem } from "./notices.js";
import { choose, chosen } from "./store.js";
import { number, oneIn, percent, say } from "./words.js";

const ALARMS = [0.1, 0.01, 0.001];

export class SettingsView {
  constructor(facts) {
    this.facts = facts;
    this.parts = el("div", {});
    this.node = el("div", { class: "settings" }, el("h1", {}, say("settings.title")), this.parts);
  }

  async enter() {
    // The field of the key stays where it is: one that is put in again loses the focus of who types.
    const key = this.key();
    const rest = el("div", { class: "rest" });
    put(this.parts, key, rest);
    try {
      const [calibration, { models: [model] }, { version }, limits] = await Promise.all([this.facts.calibration(), api.models(), api.health(), api.settings()]);
      const people = limits.gallery ? (await api.countPeople()).people : null;
      if (!limits.keys) key.replaceWith(el("p", { class: "small" }, say("settings.keyNotNeeded")));
      put(
        rest,
        limits.gallery ? this.collection() : el("p", { class: "notice" }, icon("open"), say("settings.noGallery")),
        this.pairs(calibration),
        limits.gallery ? this.searches(calibration, people) : null,
        about(model, calibration, version),
      );
    } catch (error) {
      // That there is no key yet is said at the top of the page.
      put(rest, error.status === 401 ? null : problem(error, () => this.enter()));
    }
  }

  key() {
    const field = el("input", { id: fresh("key"), type: "password", autocomplete: "off", spellcheck: "false", value: chosen("key"), "aria-describedby": fresh("hint") });
    const state = el("div", { role: "status" });
    const use = async (value, word) => {
      choose("key", value);
      this.facts.forget();
      put(state);
      try {
        await api.models();
        document.dispatchEvent(new Event("reached"));
        await this.enter();
        announce(say(`settings.${word}`));
      } catch (error) {
        put(state, problem(error));
      }
    };
    return el(
      "section",
      { class: "card" },
      el("h2", {}, say("settings.access")),
      el(
        "form",
        { on: { submit: (event) => { event.preventDefault(); use(field.value.trim(), "keyWorks"); } } },
        el("div", { class: "field" }, el("label", { for: field.id }, say("settings.key")), field, el("p", { class: "small", id: field.getAttribute("aria-describedby") }, say("settings.keyHint"))),
        el("div", { class: "actions" },
          el("button", { class: "main" }, say("settings.keySave")),
          chosen("key") ? button(say("settings.keyForget"), () => { field.value = ""; use("", "keyForgotten"); }) : null),
        state,
      ),
    );
  }

  collection() {
    const field = el("input", { id: fresh("collection"), value: chosen("collection"), autocomplete: "off", maxlength: 200, list: fresh("collections") });
    const known = el("datalist", { id: field.getAttribute("list") });
    const state = el("div", { role: "status" });
    api.collections().then(
      ({ collections }) => put(known, collections.map((name) => el("option", { value: name }))),
      (error) => { if (error.code === undefined) throw error; }, // the field can be filled by hand
    );
    const use = async () => {
      const name = field.value.trim();
      if (!name) return;
      try {
        const { collections } = await api.collections();
        if (!collections.includes(name)) await api.makeCollection(name);
        choose("collection", name);
        await this.enter();
        announce(say("settings.collectionUsed", { name }));
      } catch (error) {
        put(state, problem(error));
      }
    };
    return el(
      "section",
      { class: "card" },
      el("form", { on: { submit: (event) => { event.preventDefault(); use(); } } },
        el("div", { class: "field" }, el("label", { for: field.id }, say("settings.collection")), field, known),
        el("p", { class: "small" }, say("settings.collectionHint")),
        el("div", { class: "actions" }, el("button", {}, say("settings.collectionUse"))), state),
    );
  }

  pairs(calibration) {
    if (!calibration.calibrated) return nothing(say("settings.pairs"));
    const choices = calibration.thresholds.map((each) => ({
      value: String(each.false_accepts),
      text: say("settings.pairsChoice", { target: oneIn(each.false_accepts) }),
      more: say("settings.pairsCost", { share: percent(each.true_accepts) }),
    }));
    const usual = { value: "", text: say("settings.pairsDefault"), more: oneIn(calibration.false_accepts) };
    return radios(say("settings.pairs"), say("settings.pairsHint"), "falseAccepts", [usual, ...choices]);
  }

  searches(calibration, people) {
    if (!calibration.calibrated) return nothing(say("settings.searches"));
    const choices = ALARMS.map((alarms) => {
      // The false accept rate that it takes among so many people; fewer than one pair cannot show it.
      const rate = -Math.expm1(Math.log1p(-alarms) / Math.max(1, people));
      const resolved = rate * calibration.impostor >= 1;
      return { value: String(alarms), text: say("settings.searchesChoice", { target: oneIn(alarms) }), more: resolved ? "" : say("settings.tooStrict"), disabled: !resolved };
    });
    const hint = say("settings.searchesHint", { people: say("people.listed", { count: people }) });
    return radios(say("settings.searches"), hint, "falseAlarms", [{ value: "", text: say("settings.searchesDefault"), more: "" }, ...choices]);
  }
}

function nothing(title) {
  return el("section", { class: "card" }, el("h2", {}, title), el("p", {}, say("settings.notCalibrated")));
}

function radios(title, hint, name, choices) {
  const group = fresh(name);
  return el(
    "fieldset",
    { class: "card radios" },
    el("legend", {}, el("h2", {}, title)),
    el("p", { class: "small" }, hint),
    choices.map(({ value, text, more, disabled = false }) =>
      el(
        "label",
        { class: disabled ? "off" : "" },
        el("input", { type: "radio", name: group, value, disabled, checked: chosen(name) === value, on: { change: () => choose(name, value) } }),
        el("span", {}, text, more ? el("span", { class: "small" }, more) : null),
      ),
    ),
  );
}

function about(model, calibration, version) {
  const on = calibration.calibrated
    ? say("settings.calibratedOn", { set: calibration.set_name, genuine: number(calibration.genuine), impostor: number(calibration.impostor) })
    : say("settings.none");
  const facts = [
    [say("settings.model"), [model.name, " ", el("code", {}, model.digest.slice(0, 12))]],
    [say("settings.calibration"), on],
    [say("settings.version"), version],
  ];
  return el("section", { class: "card" }, el("h2", {}, say("settings.about")), el("dl", { class: "notes" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
}
