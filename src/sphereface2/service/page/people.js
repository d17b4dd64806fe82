// The people of a collection: enrol, find, rename, describe, remove.

import * as api from "./api.js";
import { ask, button, el, fresh, icon, put } from "./dom.js";
import { announce, problem } from "./notices.js";
import { Picker, showCrop } from "./photos.js";
import { chosen, onChoice } from "./store.js";
import { beside, date, knows, number, say } from "./words.js";

const SCORES = ["unlike_others", "same_as_another"];

export class People {
  constructor() {
    this.where = el("p", { class: "where" });
    this.enrolment = new EnrolForm(() => this.load());
    this.said = el("div", { role: "status" });
    this.text = el("input", { type: "search", id: fresh("find"), autocomplete: "off", on: { input: () => this.later() } });
    this.count = el("p", { class: "small", role: "status" });
    this.cards = el("ul", { class: "people" });
    this.after = el("div", { class: "actions" });
    this.strangers = new Marks(null);
    this.asked = 0;
    this.node = el(
      "div",
      {},
      el("h1", {}, say("people.title")),
      this.where,
      this.enrolment.node,
      el("section", { class: "directory" },
        el("div", { class: "find" }, el("div", { class: "field" }, el("label", { for: this.text.id }, say("people.find")), this.text), this.count),
        this.said, this.cards, this.after),
      this.strangers.node,
    );
    onChoice((name) => {
      if (["collection", "key"].includes(name)) this.stale = true;
    });
    this.stale = true;
  }

  // Called whenever the view is shown.
  enter() {
    put(this.where, say("app.collection", { name: chosen("collection") }));
    if (this.stale) this.load();
    this.strangers.load();
  }

  // After the last keystroke, not after each.
  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), 150);
  }

  // after: the name that the people shown end with; without it the list begins again.
  async load(after = "") {
    this.asked += 1;
    const asked = this.asked;
    const search = this.text.value.trim();
    try {
      const found = await api.listPeople({ search, after });
      if (asked !== this.asked) return;
      this.stale = false;
      if (!after) put(this.cards);
      put(this.said);
      this.list(found, search);
    } catch (error) {
      if (asked !== this.asked) return;
      put(this.cards);
      put(this.count);
      put(this.said, problem(error, () => this.load(after)));
    }
  }

  list({ people, total, next }, search) {
    put(this.count, say(search ? "people.listedFound" : "people.listed", { count: total }));
    this.cards.append(...people.map((each) => this.card(each)));
    if (!total) put(this.cards, el("li", { class: "waiting" }, search ? say("people.nobodyFound", { text: search }) : say("people.nobody")));
    put(this.after, next === null ? null : button(say("people.more"), () => this.load(next)));
    if (!search) this.enrolment.suggest(people.map((each) => each.name));
  }

  card(person) {
    const picture = el("span", { class: "crop small-crop" });
    lazily(picture, async () => {
      const { photos } = await api.showPerson(person.name);
      if (photos.length) await showCrop(picture, photos[0].id, "");
    });
    const open = button(
      [picture, el("span", { class: "who" }, el("bdi", { class: "name" }, person.name), el("span", { class: "small" }, [say("search.photos", { count: person.photos }), person.added ? say("people.since", { date: date(person.added) }) : null].filter(Boolean).join(" · ")))],
      () => this.open(person.name),
      { class: "card person", "aria-label": say("people.open", { name: person.name }) },
    );
    return el("li", {}, open);
  }

  async open(name) {
    let person;
    try {
      person = await api.showPerson(name);
    } catch (error) {
      put(this.said, problem(error, () => this.open(name)));
      return;
    }
    const done = await ask({
      title: el("bdi", {}, person.name),
      body: personView(person),
      actions: (close) => [
        button(say("people.remove"), () => close("remove"), { class: "danger" }),
        el("span", { class: "gap" }),
        button(say("people.notes"), () => close("describe")),
        button(say("people.rename"), () => close("rename")),
        button(say("people.addPhotos"), () => close("add")),
        button(say("app.close"), () => close(undefined), { class: "main" }),
      ],
    });
    await this[done ?? "closed"](person);
  }

  async closed() {
    await this.load();
  }

  async add(person) {
    this.enrolment.open(person.name);
  }

  async rename(person) {
    const field = el("input", { id: fresh("name"), value: person.name, maxlength: 200, autocomplete: "off" });
    const once = api.onceKey();
    // A key for each new name: the same request again renames once.
    const keyOf = (to) => `${once}-${encodeURIComponent(to)}`.slice(0, 200);
    await this.change(say("people.renameTitle", { name: person.name }), labelled(say("people.newName"), field), async () => {
      const to = field.value.trim();
      await api.changePerson(person.name, { name: to }, keyOf(to));
      return say("people.renamed", { name: person.name, to });
    });
  }

  async describe(person) {
    const fields = new MetadataFields(person.metadata);
    await this.change(say("people.metadataTitle", { name: person.name }), fields.node, async () => {
      await api.changePerson(person.name, { metadata: fields.value }, api.onceKey());
      return say("people.saved");
    });
  }

  async remove(person) {
    const text = el("p", {}, say("people.removeText", { count: person.photos.length }));
    const once = api.onceKey();
    await this.change(say("people.removeTitle", { name: person.name }), text, async () => {
      await api.removePerson(person.name, once);
      return say("people.removed", { name: person.name });
    }, { word: say("people.remove"), class: "danger" });
  }

  // Ask, do, and say that it is done; an error keeps the dialog open.
  async change(title, body, work, action = { word: say("people.save"), class: "main" }) {
    const trouble = el("div", {});
    const done = await ask({
      title,
      body: el("form", { on: { submit: (event) => { event.preventDefault(); event.target.closest("dialog").querySelector(".actions:last-child button:last-child").click(); } } }, body, trouble),
      actions: (close) => [
        button(say("app.cancel"), () => close(undefined)),
        button(action.word, async (event) => {
          event.target.disabled = true;
          try {
            close(await work());
          } catch (error) {
            event.target.disabled = false;
            put(trouble, problem(error));
          }
        }, { class: action.class }),
      ],
    });
    if (done === undefined) return;
    await this.load();
    put(this.said, el("div", { class: "notice good" }, icon("yes"), el("p", {}, done)));
    announce(done);
  }
}

// A person's photos, each with a button that removes it, and their metadata.
function personView(person) {
  const place = el("div", { class: "person-view" });
  const trouble = el("div", {});
  const notes = Object.entries(person.metadata ?? {});
  const draw = (photos) => {
    put(
      place,
      notes.length ? el("dl", { class: "notes" }, notes.map(([name, value]) => [el("dt", {}, name), el("dd", {}, typeof value === "string" ? value : JSON.stringify(value))])) : null,
      photos.length ? null : el("p", { class: "waiting" }, say("people.noPhotos")),
      el("ul", { class: "photos", "aria-label": say("people.photosOf", { name: person.name }) }, photos.map((photo, index) => {
        const picture = el("span", { class: "crop" });
        lazily(picture, () => showCrop(picture, photo.id, say("search.faceOf", { name: person.name })));
        const remove = button(icon("cross"), async () => {
          const sure = await ask({
            title: say("people.removePhotoTitle"),
            body: el("p", {}, say("people.removePhotoText")),
            actions: (close) => [button(say("app.cancel"), () => close(false)), button(say("people.remove"), () => close(true), { class: "danger" })],
          });
          if (!sure) return;
          try {
            await api.removePhoto(photo.id, api.onceKey());
            draw(photos.filter((each) => each !== photo));
            announce(say("people.photoRemoved"));
          } catch (error) {
            put(trouble, problem(error));
          }
        }, { class: "quiet corner", "aria-label": say("people.removePhoto", { number: index + 1, name: person.name }), title: say("people.remove") });
        return el("li", {}, picture, remove);
      })),
      trouble,
      marks.node,
    );
  };
  const marks = new Marks(person.name);
  marks.load();
  draw(person.photos);
  return place;
}

// The faces that were marked as not this person, or as strangers (null); each mark can be undone.
class Marks {
  constructor(name) {
    this.name = name;
    this.node = el("div", { class: "marks" });
  }

  async load() {
    try {
      this.draw((await api.rejected(this.name)).feedback);
    } catch (error) {
      put(this.node, problem(error, () => this.load()));
    }
  }

  // Nothing is shown where nothing is marked.
  draw(marks, said = null) {
    const about = this.name === null ? say("people.strangers", { count: marks.length }) : say("people.marks", { count: marks.length, name: this.name });
    put(
      this.node,
      marks.length ? el("h3", {}, about) : null,
      el("ul", { "aria-label": about }, marks.map((mark, index) => el("li", {}, el("span", {}, say("people.markedOn", { date: date(mark.added) })), button(say("app.undo"), () => this.undo(mark, marks), { class: "light", "aria-label": say("people.undoMark", { number: index + 1 }) })))),
      said,
    );
  }

  async undo(mark, marks) {
    try {
      await api.undoReject(mark.id, api.onceKey());
      const undone = say("people.markUndone");
      this.draw(marks.filter((each) => each !== mark), el("p", { class: "small" }, undone));
      announce(undone);
    } catch (error) {
      this.draw(marks, problem(error));
    }
  }
}

// A new person, or more photos of somebody.
class EnrolForm {
  constructor(enrolled) {
    this.enrolled = enrolled;
    this.files = [];
    this.names = el("datalist", { id: fresh("names") });
    this.name = el("input", { id: fresh("name"), maxlength: 200, autocomplete: "off", list: this.names.id, placeholder: say("people.nameHint") });
    this.chosen = el("div", { class: "chosen" });
    this.metadata = new MetadataFields({});
    this.outcome = el("div", { class: "outcome", "aria-live": "polite" });
    this.submit = el("button", { class: "main" }, say("people.submit"));
    this.picker = new Picker({ label: say("people.photos"), several: true, take: (files) => { this.files.push(...files); this.preview(); } });
    const zone = el("div", { class: "drop-zone" }, this.picker.node);
    this.picker.accept(zone);
    this.node = el(
      "details",
      { class: "card enrol" },
      el("summary", {}, el("h2", {}, icon("plus"), say("people.enrol"))),
      el(
        "form",
        { novalidate: true, on: { submit: (event) => { event.preventDefault(); this.send(); } } },
        labelled(say("people.name"), this.name),
        this.names,
        zone,
        this.chosen,
        el("details", { class: "more" }, el("summary", {}, say("people.metadata")), this.metadata.node),
        el("div", { class: "actions" }, this.submit),
        this.outcome,
      ),
    );
  }

  open(name = "", file = null) {
    this.node.open = true;
    this.name.value = name;
    if (file) {
      this.files = [file];
      this.preview();
    }
    put(this.outcome);
    this.node.scrollIntoView({ block: "start" });
    (name ? this.picker.node.querySelector("button") : this.name).focus();
  }

  suggest(names) {
    put(this.names, names.slice(0, 500).map((name) => el("option", { value: name })));
  }

  preview() {
    put(this.outcome);
    put(
      this.chosen,
      this.files.length ? el("p", { class: "small", role: "status" }, say("people.chosen", { count: this.files.length })) : null,
      el("ul", { class: "photos" }, this.files.map((file) => el("li", {}, thumbnail(file), button(icon("cross"), () => {
        this.files = this.files.filter((each) => each !== file);
        this.preview();
      }, { class: "quiet corner", "aria-label": `${say("photo.remove")}: ${file.name}` })))),
    );
  }

  async send(files = this.files, allow = [], once = api.onceKey()) {
    const name = this.name.value.trim();
    if (!name || !files.length) {
      put(this.outcome, el("div", { class: "notice bad", role: "alert" }, icon("open"), el("p", {}, say(name ? "people.needPhoto" : "people.needName"))));
      (name ? this.picker.node.querySelector("button") : this.name).focus();
      return;
    }
    this.submit.disabled = true;
    put(this.outcome, el("p", { class: "busy" }, say("people.enrolling")));
    const metadata = this.metadata.value;
    try {
      const reply = await api.enrol(name, files, { metadata: Object.keys(metadata).length ? metadata : null, allow, once });
      this.show(reply, files);
      if (reply.added) this.enrolled();
    } catch (error) {
      if (error.code === "not_enrolled") this.show(error.details, files);
      else put(this.outcome, problem(error, () => this.send(files, allow, once)));
    } finally {
      this.submit.disabled = false;
    }
  }

  show(reply, files) {
    const summary = reply.added ? say("people.done", { count: reply.added, name: reply.person }) : say("people.doneNone", { name: reply.person });
    put(
      this.outcome,
      el("div", { class: `notice ${reply.added ? "good" : "bad"}` }, icon(reply.added ? "yes" : "open"), el("p", {}, summary)),
      el("ul", { class: "outcomes" }, reply.photos.map((photo, index) => this.photo(photo, files[index]))),
      (reply.notes ?? []).map((note) => el("p", { class: "small" }, note)),
    );
    this.files = [];
    put(this.chosen);
    if (reply.added) this.metadata.fill({});
  }

  // One photo of an enrolment: taken, or why not, and a way to take it all the same.
  photo(photo, file) {
    const word = photo.again ? "photoAgain" : photo.accepted ? "photoTaken" : "photoRefused";
    const codes = photo.reasons.map((each) => each.code);
    const may = codes.length && !codes.some((code) => ["no_face", "unreadable", "twice"].includes(code));
    return el(
      "li",
      {},
      thumbnail(file),
      el(
        "div",
        {},
        el("p", {}, el("bdi", {}, file.name), el("span", { class: `mark ${photo.accepted ? "yes" : "no"}` }, say(`people.${word}`))),
        photo.reasons.map((each) => el("p", { class: "small" }, reasonInWords(each))),
        may ? el("div", { class: "actions" }, button(say("people.anyway"), () => this.send([file], codes), { class: "light", "aria-label": `${say("people.anyway")}: ${file.name}` })) : null,
      ),
    );
  }
}

function reasonInWords({ code, words, value, limit }) {
  if (!knows(`people.reasons.${code}`)) return words;
  const plain = (each) => (each === null || each === undefined ? "" : number(each));
  const [shown, least] = SCORES.includes(code) ? beside(value, limit) : [plain(value), plain(limit)];
  return say(`people.reasons.${code}`, { value: shown, limit: least });
}

// Names and values that the user may give a person.
class MetadataFields {
  constructor(values) {
    this.rows = el("div", {});
    this.node = el("div", { class: "metadata" }, this.rows, button([icon("plus"), say("people.addField")], () => this.row("", "").querySelector("input").focus(), { class: "light" }));
    this.fill(values);
  }

  fill(values) {
    put(this.rows);
    for (const [name, value] of Object.entries(values ?? {})) this.row(name, value);
  }

  row(name, value) {
    const given = typeof value === "string" ? value : JSON.stringify(value);
    const row = el(
      "div",
      { class: "row" },
      el("input", { value: name, "aria-label": say("people.metadataKey"), placeholder: say("people.metadataKey") }),
      el("input", { value: given, "aria-label": say("people.metadataValue"), placeholder: say("people.metadataValue") }),
      button(icon("cross"), () => row.remove(), { class: "quiet", "aria-label": say("people.removeField") }),
    );
    Object.assign(row, { given, value });
    this.rows.append(row);
    return row;
  }

  // A value that was not a text and was not touched stays what it was.
  get value() {
    const found = {};
    for (const row of this.rows.children) {
      const [name, value] = [...row.querySelectorAll("input")].map((each) => each.value.trim());
      if (name) found[name] = value === row.given ? row.value : value;
    }
    return found;
  }
}

function labelled(text, field) {
  return el("div", { class: "field" }, el("label", { for: field.id }, text), field);
}

function thumbnail(file) {
  const address = URL.createObjectURL(file);
  const release = () => URL.revokeObjectURL(address);
  const place = el("span", { class: "crop" });
  put(place, el("img", { src: address, alt: file.name, width: 112, height: 112, on: { load: release, error: () => { release(); put(place, icon("photo")); } } }));
  return place;
}

const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    // A picture that cannot be had leaves its place empty; the rest of the card stands.
    target.fetchPicture().catch((error) => { if (error.code === undefined) throw error; });
  }
});

// Fetch a picture once it comes into view.
function lazily(place, fetchPicture) {
  place.fetchPicture = fetchPicture;
  seen.observe(place);
}
