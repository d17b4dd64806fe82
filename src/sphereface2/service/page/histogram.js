// The scores of pairs of one person and of different people, the threshold, and one score among them.

import { el, put, svg } from "./dom.js";
import { beside, figures, say } from "./words.js";

const HEIGHT = 220;
const EDGE = { top: 42, bottom: 40, side: 14 };
const ROWS = [15, 33]; // of the words beside the two lines

// answer: what the service says about a score; calibration: its histogram.
export function histogram(calibration, answer) {
  const place = el("div", { class: "histogram" });
  const draw = () => put(place, legend(calibration), picture(calibration, answer, Math.max(280, place.clientWidth)));
  new ResizeObserver(([entry]) => {
    if (entry.contentRect.width && entry.contentRect.width !== place.drawn) {
      place.drawn = entry.contentRect.width;
      draw();
    }
  }).observe(place);
  return place;
}

function legend({ set_name: set, genuine, impostor }) {
  return el(
    "div",
    { class: "legend" },
    el("p", {}, say("histogram.title", { set })),
    el("ul", {},
      el("li", { class: "impostor" }, say("histogram.impostor", { count: impostor })),
      el("li", { class: "genuine" }, say("histogram.genuine", { count: genuine }))),
  );
}

function picture({ histogram: { edges, genuine, impostor }, set_name: set }, { score, threshold }, width) {
  const [low, high] = range(edges, genuine, impostor, [score, threshold]);
  const across = (value) => EDGE.side + ((value - low) / (high - low)) * (width - 2 * EDGE.side);
  const floor = HEIGHT - EDGE.bottom;
  const kinds = { impostor: shares(impostor), genuine: shares(genuine) };
  const peak = Math.max(...kinds.impostor, ...kinds.genuine);
  const up = (share) => floor - (share / peak) * (floor - EDGE.top);
  const areas = Object.entries(kinds).map(([kind, heights]) => svg("path", { class: kind, d: outline(edges, heights, across, up, floor) }));
  const [impostorLow, impostorHigh] = middle(edges, impostor);
  const [genuineLow, genuineHigh] = middle(edges, genuine);
  const [shown, limit] = beside(score, threshold);
  const label = say("histogram.label", { set, impostorLow, impostorHigh, genuineLow, genuineHigh, threshold: limit, score: shown });
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": label },
    areas,
    ticks(low, high).map((tick) => [
      svg("line", { class: "tick", x1: across(tick), x2: across(tick), y1: floor, y2: floor + 5 }),
      svg("text", { x: across(tick), y: floor + 18, "text-anchor": "middle" }, tick.toFixed(1).replace("-", "−")),
    ]),
    svg("line", { class: "axis", x1: EDGE.side, x2: width - EDGE.side, y1: floor, y2: floor }),
    svg("text", { x: width - EDGE.side, y: HEIGHT - 4, "text-anchor": "end" }, say("histogram.axis")),
    marker("threshold", across(threshold)),
    marker("score", across(score)),
    words("threshold", across(threshold), say("histogram.threshold", { value: limit }), width, score > threshold),
    words("score", across(score), say("histogram.score", { value: shown }), width, score <= threshold),
  );
}

function marker(kind, x) {
  const floor = HEIGHT - EDGE.bottom;
  return svg(
    "g",
    { class: `marker ${kind}` },
    svg("line", { x1: x, x2: x, y1: 4, y2: floor }),
    kind === "score" ? svg("circle", { cx: x, cy: floor, r: 6 }) : null,
  );
}

// The words beside a line, away from the other line; where they do not fit there, a row below.
function words(kind, x, text, width, left) {
  const needed = 8 * text.length;
  const fits = left ? x > needed : x + needed < width;
  const before = fits ? left : !left;
  return svg(
    "text",
    { class: `marker ${kind}`, x: x + (before ? -7 : 7), y: ROWS[fits ? 0 : 1], "text-anchor": before ? "end" : "start" },
    text,
  );
}

function shares(counts) {
  const total = counts.reduce((sum, each) => sum + each, 0) || 1;
  return counts.map((each) => each / total);
}

// From the lowest to the highest score that there is, with a little room.
function range(edges, genuine, impostor, others) {
  const used = genuine.map((each, bin) => each + impostor[bin] > 0);
  const low = Math.min(edges[used.indexOf(true)], ...others);
  const high = Math.max(edges[used.lastIndexOf(true) + 1], ...others);
  const room = 0.02 * (high - low || 1);
  return [low - room, high + room];
}

function outline(edges, heights, across, up, floor) {
  const first = heights.findIndex((each) => each > 0);
  const last = heights.findLastIndex((each) => each > 0);
  let path = `M${across(edges[first]).toFixed(1)} ${floor}`;
  for (let bin = first; bin <= last; bin += 1) {
    const y = up(heights[bin]).toFixed(1);
    path += `L${across(edges[bin]).toFixed(1)} ${y}L${across(edges[bin + 1]).toFixed(1)} ${y}`;
  }
  return `${path}L${across(edges[last + 1]).toFixed(1)} ${floor}Z`;
}

function ticks(low, high) {
  const step = high - low > 0.9 ? 0.2 : 0.1;
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high; at += 1) found.push(at * step);
  return found;
}

// Between which scores nine of ten pairs lie, as words.
function middle(edges, counts) {
  const total = counts.reduce((sum, each) => sum + each, 0);
  const at = (share) => {
    let sum = 0;
    return counts.findIndex((each) => (sum += each) >= share * total);
  };
  return [figures(edges[at(0.05)]), figures(edges[at(0.95) + 1])];
}
