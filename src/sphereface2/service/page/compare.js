// Two photos: are they one person?

import * as api from "./api.js";
import { el, icon, put } from "./dom.js";
import { histogram } from "./histogram.js";
import { problem } from "./notices.js";
import { cropView, FaceSlot } from "./photos.js";
import { chosen, choose, onChoice } from "./store.js";
import { beside, figures, number, oneIn, percent, probability, say } from "./words.js";

const PRIORS = [0.5, 0.1, 0.01, 0.001];

export class Compare {
  constructor(facts) {
    this.facts = facts;
    this.asked = 0;
    this.slots = ["first", "second"].map((which) => new FaceSlot({ label: say(`compare.${which}`), changed: () => this.update() }));
    this.answer = el("section", { class: "answer card", "aria-live": "polite", "aria-label": say("compare.answer") });
    this.node = el("div", {}, el("h1", {}, say("compare.title")), el("div", { class: "pair" }, this.slots.map((slot) => slot.node)), this.answer);
    onChoice((name) => {
      if (["falseAccepts", "prior"].includes(name)) this.update();
    });
    document.addEventListener("reached", () => {
      if (this.answer.querySelector("[role=alert]")) this.update();
    });
    this.update();
  }

  async update() {
    this.asked += 1;
    const asked = this.asked;
    const faces = this.slots.map((slot) => slot.face);
    if (!faces.every(Boolean)) {
      const word = faces.some(Boolean) ? "waitingOne" : "waiting";
      put(this.answer, el("p", { class: "waiting" }, say(`compare.${word}`)));
      return;
    }
    if (!this.answer.querySelector(".verdict")) put(this.answer, el("p", { class: "busy" }, say("compare.comparing")));
    this.answer.setAttribute("aria-busy", "true");
    try {
      const calibration = await this.facts.calibration();
      const wishes = calibration.calibrated ? { false_accepts: chosen("falseAccepts"), prior: chosen("prior") } : {};
      const [first, second] = faces.map((face) => face.blob);
      const reply = await api.verify(first, second, wishes);
      if (asked === this.asked) this.show(reply, faces, calibration);
    } catch (error) {
      if (asked === this.asked) put(this.answer, problem(error, () => this.update()));
    } finally {
      if (asked === this.asked) this.answer.removeAttribute("aria-busy");
    }
  }

  show(reply, faces, calibration) {
    const crops = el(
      "div",
      { class: "crops" },
      faces.map((face, which) => {
        const label = say(face.points ? "photo.crop" : "photo.plainCrop", { label: this.slots[which].label });
        return cropView(face.view, face.points, face.size, label);
      }),
    );
    put(this.answer, el("div", { class: "result" }, crops, el("div", {}, verdict(reply))), reply.threshold === null ? null : [this.tiles(reply), histogram(calibration, reply)]);
  }

  tiles(reply) {
    const rate = reply.false_accepts;
    const seen = rate.successes ? "compare.someAccepts" : "compare.noAccepts";
    const ends = { low: percent(rate.interval.low), high: percent(rate.interval.high) };
    return el(
      "dl",
      { class: "tiles" },
      tile(say("compare.score"), figures(reply.score)),
      tile(say("compare.probability"), probability(reply.probability), prior(reply.prior)),
      tile(say("compare.falseAccepts"), rate.successes ? percent(rate.value) : `< ${ends.high}`, say(seen, { successes: number(rate.successes), trials: number(rate.trials), ...ends })),
    );
  }
}

function verdict(reply) {
  if (reply.threshold === null) {
    return [
      el("p", { class: "verdict open" }, icon("open"), say("compare.noDecision")),
      el("p", {}, say("compare.notCalibrated", { score: figures(reply.score) })),
      el("code", {}, say("compare.command")),
    ];
  }
  const [score, threshold] = beside(reply.score, reply.threshold);
  const values = { score, threshold, target: oneIn(reply.target) };
  return [
    el("p", { class: `verdict ${reply.accepted ? "yes" : "no"}` }, icon(reply.accepted ? "yes" : "no"), say(reply.accepted ? "compare.same" : "compare.notAccepted")),
    el("p", {}, say(reply.accepted ? "compare.reaches" : "compare.below", values)),
    reply.accepted ? null : el("p", { class: "small" }, say("compare.notTwo")),
    el("p", { class: "small" }, el("a", { href: "#settings" }, say("compare.changeThreshold"))),
  ];
}

function tile(name, value, more) {
  return el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, el("b", {}, value), more ? el("span", { class: "small" }, more) : null));
}

// The words of the prior with a choice inside them.
function prior(now) {
  const known = PRIORS.some((each) => Math.abs(each - now) < 1e-9) ? PRIORS : [now, ...PRIORS];
  const select = el(
    "select",
    { "aria-label": say("compare.priorLabel"), on: { change: (event) => choose("prior", event.target.value) } },
    known.map((each) => el("option", { value: each, selected: Math.abs(each - now) < 1e-9 }, oneIn(each))),
  );
  const [before, after] = say("compare.prior", { select: "\n" }).split("\n");
  return [before, select, after];
}
