// The service's routes, as functions; what goes wrong is a ServiceError.

import { chosen } from "./store.js";

export class ServiceError extends Error {
  constructor(code, { status = 0, message = "", details = {}, seconds = null, request = "" } = {}) {
    super(message || code);
    Object.assign(this, { code, status, details, seconds, request });
  }
}

// A key for a request that writes: repeated with it, it is done once.
export function onceKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");
}

async function call(method, path, { body, once } = {}) {
  const headers = {};
  const key = chosen("key");
  if (key) headers.Authorization = `Bearer ${key}`;
  if (once) headers["Idempotency-Key"] = once;
  if (body !== undefined && !(body instanceof FormData)) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, { method, headers, body, cache: "no-store", credentials: "omit" });
  } catch (error) {
    throw new ServiceError("gone", { message: error.message });
  }
  if (answer.ok) return answer;
  let reply = {};
  try {
    reply = await answer.json();
  } catch {
    // Not from the service but from something before it, such as a proxy.
  }
  const waits = Number.parseInt(answer.headers.get("Retry-After") ?? "", 10);
  throw new ServiceError(reply.error?.code ?? `http_${answer.status}`, {
    status: answer.status,
    message: reply.error?.message ?? answer.statusText,
    details: reply.error?.details ?? {},
    seconds: Number.isNaN(waits) ? null : waits,
    request: reply.request_id ?? "",
  });
}

async function json(method, path, options) {
  return (await call(method, path, options)).json();
}

// Files and words as a form; what is empty is left out.
function form(fields) {
  const found = new FormData();
  for (const [name, value] of Object.entries(fields)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each instanceof Blob) found.append(name, each, each.name ?? "face.png");
      else if (each !== "" && each !== null && each !== undefined) found.append(name, each);
    }
  }
  return found;
}

const part = encodeURIComponent;
const collection = () => `/v1/collections/${part(chosen("collection"))}`;
const person = (name) => `${collection()}/people/${part(name)}`;

export const health = () => json("GET", "/v1/health");
export const models = () => json("GET", "/v1/models");
export const settings = () => json("GET", "/v1/settings");
export const calibration = () => json("GET", "/v1/calibration");
export const collections = () => json("GET", "/v1/collections");
export const makeCollection = (name) => json("PUT", `/v1/collections/${part(name)}`);
export const countPeople = () => json("GET", collection());

export const detect = (photo) => json("POST", "/v1/detect?crops=true", { body: form({ photo }) });

export const verify = (photo, other, wishes) =>
  json("POST", "/v1/verify", { body: form({ photo, person: other, kind: "crop", ...wishes }) });

export const identify = (photo, wishes) =>
  json("POST", "/v1/identify", {
    body: form({ photo, collection: chosen("collection"), kind: "crop", ...wishes }),
  });

// person: whom the photo does not show; null: it shows a stranger.
export const reject = (photo, who, once) =>
  json("POST", "/v1/feedback", {
    body: form({ photo, person: who, collection: chosen("collection"), kind: "crop" }),
    once,
  });

export const rejected = (who) =>
  json("GET", `/v1/feedback?collection=${part(chosen("collection"))}${who === null ? "" : `&person=${part(who)}`}`);

export const undoReject = (id, once) =>
  call("DELETE", `/v1/feedback/${part(id)}?collection=${part(chosen("collection"))}`, { once });

export const listPeople = ({ search = "", after = "", limit = 60 }) =>
  json("GET", `${collection()}/people?search=${part(search)}&after=${part(after)}&limit=${limit}`);
export const showPerson = (name) => json("GET", person(name));
export const enrol = (name, photos, { metadata, allow, once }) =>
  json("POST", `${collection()}/people`, {
    body: form({ name, photos, metadata: metadata ? JSON.stringify(metadata) : "", allow }),
    once,
  });
export const changePerson = (name, change, once) => json("PATCH", person(name), { body: change, once });
export const removePerson = (name, once) => call("DELETE", person(name), { once });
export const removePhoto = (id, once) => call("DELETE", `${collection()}/photos/${part(id)}`, { once });
export const crop = async (id) => (await call("GET", `${collection()}/photos/${part(id)}/crop`)).blob();
