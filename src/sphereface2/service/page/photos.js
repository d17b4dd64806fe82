// Where photos come in: chosen, dropped, pasted or taken; and the face that is meant.

import * as api from "./api.js";
import { takePhoto } from "./camera.js";
import { button, el, fresh, icon, put, svg } from "./dom.js";
import { announce, problem } from "./notices.js";
import { say } from "./words.js";

const pickers = [];

function isPicture(file) {
  return file.type.startsWith("image/") || /\.(heic|heif|avif|tiff?|bmp|webp)$/i.test(file.name);
}

// A place to drop photos on, with buttons beside; `take` gets the files.
export class Picker {
  constructor({ label, several = false, take }) {
    Object.assign(this, { label, several, take });
    const input = el("input", { type: "file", accept: "image/*,.heic,.heif", hidden: true, multiple: several });
    input.addEventListener("change", () => {
      this.receive([...input.files]);
      input.value = "";
    });
    this.said = el("p", { class: "small", role: "status" });
    this.node = el(
      "div",
      { class: "picker" },
      icon("photo"),
      el("p", {}, say(several ? "photo.dropSeveral" : "photo.drop")),
      el(
        "div",
        { class: "actions" },
        button(say(several ? "photo.chooseSeveral" : "photo.choose"), () => input.click(), { "aria-label": `${say(several ? "photo.chooseSeveral" : "photo.choose")}: ${label}` }),
        button([icon("camera"), say("photo.camera")], () => this.shoot(), { "aria-label": `${say("photo.camera")}: ${label}` }),
      ),
      this.said,
      input,
    );
    pickers.push(this);
  }

  // The element that takes dropped files, which may be more than the picker itself.
  accept(zone) {
    this.zone = zone;
    const over = (event, on) => {
      event.preventDefault();
      zone.classList.toggle("over", on);
    };
    zone.addEventListener("dragover", (event) => over(event, true));
    zone.addEventListener("dragleave", (event) => over(event, false));
    zone.addEventListener("drop", (event) => {
      over(event, false);
      this.receive([...event.dataTransfer.files]);
    });
  }

  receive(files) {
    put(this.said);
    const wrong = files.find((file) => !isPicture(file));
    if (wrong) put(this.said, say("photo.notAPhoto", { name: wrong.name }));
    const pictures = files.filter(isPicture);
    if (pictures.length) this.take(this.several ? pictures : pictures.slice(0, 1));
  }

  async shoot() {
    const taken = await takePhoto();
    if (taken) this.receive([taken]);
  }

  get visible() {
    return this.zone?.offsetParent !== null && this.node.isConnected;
  }

  get empty() {
    return this.node.offsetParent !== null;
  }
}

// A pasted picture goes to the place that has the focus, else to the first that is empty.
document.addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (!files.length || document.querySelector("dialog[open]")) return;
  const shown = pickers.filter((each) => each.visible);
  const target =
    shown.find((each) => each.zone.contains(document.activeElement)) ??
    shown.find((each) => each.empty) ??
    shown[0];
  if (!target) return;
  event.preventDefault();
  target.receive(files);
});

// A file that misses its place must not replace the page.
for (const name of ["dragover", "drop"]) {
  document.addEventListener(name, (event) => event.preventDefault());
}

// The aligned face with its five points.
export function cropView(source, points, size, label) {
  const [width, height] = size;
  return el(
    "span",
    { class: "crop" },
    el("img", { src: source, alt: label, width: 112, height: 112 }),
    points
      ? svg(
          "svg",
          { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
          points.map(([x, y]) => svg("circle", { cx: x, cy: y, r: width / 45 })),
        )
      : null,
  );
}

// The picture of an enrolled photo, in its place.
export async function showCrop(place, id, label) {
  const address = URL.createObjectURL(await api.crop(id));
  put(place, el("img", { src: address, alt: label, width: 112, height: 112, on: { load: () => URL.revokeObjectURL(address) } }));
}

function blobOf(base64) {
  const bytes = Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}

// One photo and the face in it that is meant. `changed` is called when there is another, or none.
export class FaceSlot {
  constructor({ label, changed }) {
    Object.assign(this, { label, changed });
    this.asked = 0;
    this.heading = fresh("photo");
    this.body = el("div", { class: "slot-body" });
    this.node = el(
      "section",
      { class: "slot card", "aria-labelledby": this.heading },
      el("h2", { id: this.heading, class: "slot-title" }, label),
      this.body,
    );
    this.picker = new Picker({ label, take: ([file]) => this.set(file) });
    this.picker.accept(this.node);
    this.clear();
    document.addEventListener("reached", () => {
      if (this.file && !this.faces && this.below.querySelector("[role=alert]")) this.set(this.file);
    });
  }

  // The chosen face as a PNG, or null.
  get face() {
    return this.faces?.[this.choice] ?? null;
  }

  clear() {
    this.asked += 1;
    if (this.address) URL.revokeObjectURL(this.address);
    Object.assign(this, { file: null, faces: null, choice: 0, address: null });
    put(this.body, this.picker.node);
  }

  async set(file) {
    const focused = this.node.contains(document.activeElement);
    this.clear();
    const asked = this.asked;
    this.file = file;
    this.address = URL.createObjectURL(file);
    this.below = el("div", { class: "below" }, el("p", { class: "busy", role: "status" }, say("photo.looking")));
    this.frame = el("div", { class: "frame" }, this.preview());
    const remove = button([icon("cross"), el("span", { class: "unseen" }, `${say("photo.remove")}: ${this.label}`)], () => this.drop(), { class: "quiet corner", title: say("photo.remove") });
    put(this.body, el("div", { class: "stage" }, this.frame, remove), this.below);
    if (focused) remove.focus();
    this.changed();
    try {
      const found = await api.detect(file);
      if (asked === this.asked) this.show(found);
    } catch (error) {
      if (asked === this.asked) put(this.below, problem(error, () => this.set(file)));
    }
  }

  drop() {
    this.clear();
    this.changed();
    this.picker.node.querySelector("button").focus();
  }

  preview() {
    const image = el("img", { src: this.address, alt: say("photo.preview", { label: this.label }) });
    image.addEventListener("error", () => put(this.frame, el("p", { class: "small" }, say("photo.noPreview"))));
    return image;
  }

  show({ width, height, faces, chosen = 0 }) {
    if (!faces.length) {
      put(
        this.below,
        problem(new api.ServiceError("no_face")),
        el("div", { class: "actions" }, button(say("photo.asCrop"), () => this.useAsCrop())),
      );
      return;
    }
    this.faces = faces.map((face) => {
      const blob = blobOf(face.crop);
      return { blob, view: `data:image/png;base64,${face.crop}`, points: face.points, size: face.crop_size };
    });
    this.choice = chosen ?? 0;
    this.boxes = svg(
      "svg",
      { class: "boxes", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
      faces.map(({ box }) => (box ? rectangle(box, Math.max(width, height)) : svg("g", {}))),
    );
    this.frame.append(this.boxes);
    const said = say("photo.found", { count: faces.length });
    put(this.below, el("p", { class: "small", role: "status" }, said), faces.length > 1 ? this.choices() : null);
    this.mark();
    this.changed();
  }

  // Radio buttons with the faces on them.
  choices() {
    const name = fresh("face");
    return el(
      "fieldset",
      { class: "faces" },
      el("legend", { class: "unseen" }, say("photo.whichFace", { label: this.label })),
      this.faces.map((face, number) =>
        el(
          "label",
          {},
          el("input", {
            type: "radio", name, class: "unseen", checked: number === this.choice,
            on: { change: () => { this.choice = number; this.mark(); this.changed(); } },
          }),
          cropView(face.view, face.points, face.size, say("photo.faceNumber", { number: number + 1 })),
        ),
      ),
    );
  }

  mark() {
    [...(this.boxes?.children ?? [])].forEach((each, number) => each.classList.toggle("meant", number === this.choice));
  }

  useAsCrop() {
    this.faces = [{ blob: this.file, view: this.address, points: null, size: [112, 112] }];
    put(this.below);
    announce(say("photo.plainCrop", { label: this.label }));
    this.changed();
  }
}

function rectangle([left, top, right, bottom], side) {
  return svg("rect", {
    x: left, y: top, width: right - left, height: bottom - top, rx: (right - left) / 12,
    "stroke-width": side / 160,
  });
}
