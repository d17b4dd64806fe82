// Texts with their numbers filled in, and numbers as people say them.

import { LANGUAGE, TEXTS } from "./texts.js";

const plural = new Intl.PluralRules(LANGUAGE);
const whole = new Intl.NumberFormat(LANGUAGE, { maximumFractionDigits: 0 });

function lookUp(key) {
  return key.split(".").reduce((found, part) => found?.[part], TEXTS);
}

export function knows(key) {
  return lookUp(key) !== undefined;
}

export function say(key, values = {}) {
  const found = lookUp(key);
  if (found === undefined) throw new Error(`texts.js has no text '${key}'`);
  const text = typeof found === "string" ? found : found[plural.select(values.count)] ?? found.other;
  return text.replace(/\{(\w+)\}/g, (_, name) => {
    const value = values[name];
    return typeof value === "number" ? whole.format(value) : value;
  });
}

export function figures(score, decimals = 3) {
  return score.toFixed(decimals).replace("-", "−");
}

// A score and the limit it is compared with, with as many decimals as tell the two apart.
export function beside(score, limit) {
  const rounded = (value, decimals) => Number(value.toFixed(decimals));
  let decimals = 3;
  while (score !== limit && decimals < 16 && rounded(score, decimals) === rounded(limit, decimals)) decimals += 1;
  return [figures(score, decimals), figures(limit, decimals)];
}

export function percent(share) {
  const value = 100 * share;
  return `${share < 0.1 ? Number(value.toPrecision(2)) : Math.round(value)}%`;
}

// "1 in 1,000"
export function oneIn(share) {
  return share <= 0.1 ? `1 in ${whole.format(1 / share)}` : percent(share);
}

export function probability(share) {
  if (share > 0.9995) return "> 99.9%";
  return share < 0.0005 ? "< 0.1%" : `${(100 * share).toFixed(1)}%`;
}

export function number(value) {
  return whole.format(value);
}

export function date(iso) {
  const day = new Date(iso);
  return Number.isNaN(day.valueOf()) ? "" : day.toLocaleDateString(LANGUAGE, { dateStyle: "medium" });
}
