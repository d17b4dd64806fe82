// One photo: who of the collection is it?

import * as api from "./api.js";
import { button, el, icon, put } from "./dom.js";
import { announce, problem } from "./notices.js";
import { FaceSlot, showCrop } from "./photos.js";
import { chosen, onChoice } from "./store.js";
import { beside, figures, oneIn, percent, probability, say } from "./words.js";

const CANDIDATES = 5;

export class Search {
  constructor(facts, { enrolThis }) {
    Object.assign(this, { facts, enrolThis });
    this.asked = 0;
    this.slot = new FaceSlot({ label: say("search.photo"), changed: () => this.update() });
    this.answer = el("section", { class: "answer card", "aria-label": say("search.answer") });
    this.where = el("p", { class: "where" });
    this.node = el("div", {}, el("h1", {}, say("search.title")), this.where, el("div", { class: "beside" }, this.slot.node, this.answer));
    onChoice((name) => {
      if (["collection", "falseAlarms"].includes(name)) this.update();
    });
    document.addEventListener("reached", () => {
      if (this.answer.querySelector("[role=alert]")) this.update();
    });
    this.update();
  }

  async update() {
    this.asked += 1;
    const asked = this.asked;
    put(this.where, say("app.collection", { name: chosen("collection") }));
    const { face } = this.slot;
    if (!face) {
      put(this.answer, el("p", { class: "waiting" }, say("search.waiting")));
      return;
    }
    put(this.answer, el("p", { class: "busy", role: "status" }, say("search.searching")));
    try {
      const { calibrated } = await this.facts.calibration();
      const wishes = { people: CANDIDATES, ...(calibrated ? { false_alarms: chosen("falseAlarms") } : {}) };
      const reply = await api.identify(face.blob, wishes);
      if (asked === this.asked) this.show(reply);
    } catch (error) {
      if (asked === this.asked) put(this.answer, this.trouble(error));
    }
  }

  trouble(error) {
    if (error.code !== "nobody_enrolled") return problem(error, () => this.update());
    return el(
      "div",
      { class: "notice" },
      icon("open"),
      el("div", {},
        el("p", {}, say("search.empty", { collection: chosen("collection") })),
        el("div", { class: "actions" }, button(say("search.enrolFirst"), () => this.enrolThis(this.slot.file)))),
    );
  }

  show(reply) {
    const list = el("ol", { class: "candidates", "aria-label": say("search.candidates") }, reply.candidates.map((each) => this.candidate(each)));
    const summary = verdict(reply);
    put(this.answer, summary, list, this.nobody());
    announce(summary.map((each) => each.textContent).join(". "));
  }

  // Of the people whom the photo may show: their picture, their score, and "not this person".
  candidate(found) {
    const picture = el("span", { class: "crop small-crop" });
    showFirst(found, picture);
    const state = found.accepted === null ? null : mark(found);
    return el(
      "li",
      {},
      picture,
      el(
        "div",
        { class: "who" },
        el("p", { class: "name" }, el("bdi", {}, found.person), state),
        scale(found),
        el("p", { class: "small" },
          [say("search.score", { score: figures(found.score) }), found.probability === null ? null : say("search.probability", { value: probability(found.probability) }), say("search.photos", { count: found.photos })].filter(Boolean).join(" · ")),
        alarms(found.false_alarms),
        this.rejection(found.person),
      ),
    );
  }

  // A button that keeps the face as not this person, and becomes one that undoes it.
  rejection(person) {
    const face = this.slot.face.blob;
    const long = say(person === null ? "search.stranger" : "search.notThisPersonLong", { name: person });
    const short = say(person === null ? "search.stranger" : "search.notThisPerson");
    const place = el("div", { class: "actions" });
    const offer = (text) => put(place, button(short, keep, { "aria-label": long, class: "light" }), text ? el("span", { class: "small" }, text) : null);
    const word = person === null ? ["strangerMarked", "strangerUnmarked"] : ["marked", "unmarked"];
    const attempt = async (work) => {
      for (const each of place.querySelectorAll("button")) each.disabled = true;
      try {
        await work();
        place.querySelector("button").focus();
      } catch (error) {
        offer();
        place.append(problem(error));
      }
    };
    let once = api.onceKey(); // the same for an attempt that failed on its way
    const keep = () => attempt(async () => {
      const { id } = await api.reject(face, person, once);
      once = api.onceKey();
      const said = say(`search.${word[0]}`, { name: person });
      const undo = () => attempt(async () => {
        await api.undoReject(id, api.onceKey());
        const undone = say(`search.${word[1]}`, { name: person });
        offer(undone);
        announce(undone);
      });
      put(place, button([icon("back"), say("app.undo")], undo, { class: "light" }), el("span", { class: "small" }, said));
      announce(said);
    });
    offer();
    return place;
  }

  nobody() {
    return el(
      "div",
      { class: "nobody" },
      this.rejection(null),
      button(say("search.enrolThis"), () => this.enrolThis(this.slot.file), { class: "light" }),
    );
  }
}

function verdict({ person, candidates, rule }) {
  const [best] = candidates;
  const first = candidates.find((each) => each.accepted) ?? best;
  const { score, threshold } = first;
  if (threshold === null) {
    return [
      el("p", { class: "verdict open" }, icon("open"), say("search.noDecision")),
      el("p", {}, say("search.notCalibrated")),
      el("code", {}, say("compare.command")),
    ];
  }
  const words = rule.asked === "false_alarms" ? "ruleAlarms" : "ruleAccepts";
  const [shown, limit] = beside(score, threshold);
  const values = {
    score: shown,
    threshold: limit,
    name: first.person,
    rule: say(`search.${words}`, { target: oneIn(rule.target), alarms: oneIn(rule.alarms) }),
  };
  const why = person !== null ? "found" : first.objection?.stands ? "objected" : "below";
  return [
    el("p", { class: `verdict ${person === null ? "no" : "yes"}` }, icon(person === null ? "no" : "yes"), el("bdi", {}, person ?? say("search.nobody", { count: rule.people }))),
    el("p", {}, say(`search.${why}`, values)),
  ];
}

function mark(found) {
  if (found.accepted) return el("span", { class: "mark yes" }, say("search.accepted"));
  const word = found.objection?.stands ? "spokenAgainst" : "notAccepted";
  return el("span", { class: "mark" }, say(`search.${word}`));
}

// The score between 0 and 1 as a bar, with the threshold on it.
function scale({ score, threshold, accepted }) {
  const share = (value) => `${100 * Math.min(1, Math.max(0, value))}%`;
  const bar = el("div", { class: `scale ${accepted ? "yes" : ""}`, "aria-hidden": "true" }, el("i", {}), threshold === null ? null : el("b", {}));
  bar.querySelector("i").style.width = share(score);
  if (threshold !== null) bar.querySelector("b").style.left = share(threshold);
  return bar;
}

function alarms(rate) {
  if (!rate) return null;
  const ends = { low: percent(rate.interval.low), high: percent(rate.interval.high), value: percent(rate.value) };
  return el("p", { class: "small" }, say(rate.successes ? "search.alarms" : "search.noAlarms", ends));
}

// The first photo of the person of which a picture was kept.
async function showFirst({ person }, place) {
  try {
    const { photos } = await api.showPerson(person);
    if (photos.length) await showCrop(place, photos[0].id, say("search.faceOf", { name: person }));
  } catch (error) {
    if (!(error instanceof api.ServiceError)) throw error; // without its picture a candidate still has a name
  }
}
