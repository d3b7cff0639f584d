// Small helpers: elements, numbers, colours. Text always goes in as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element: props starting with "on" are listeners, `style` is an object, everything else an attribute. */
function h(tag, props, ...children) {
  const element = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, each] of Object.entries(value)) element.style.setProperty(name, each);
    else if (key === "value" && "value" in element) element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Three digits, with an exponent only where it helps: the same rule as in the sentences of findings. */
function num(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "n/a";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return tidy(value.toExponential(1));
  return tidy(Number(value.toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 6 }));
}

const tidy = (text) => text.replace("e+", "e").replace("-", "−");
const whole = (value) => Math.round(value).toLocaleString("en-US");
const percent = (share) => `${num(100 * share)} %`;
const steps = (first, last) => (first === last ? `step ${whole(first)}` : `steps ${whole(first)}–${whole(last)}`);
const plural = (n, word) => `${whole(n)} ${word}${n === 1 ? "" : "s"}`;
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** The middle of a long name left out. */
function short(name, most = 44) {
  const text = String(name);
  if (text.length <= most) return text;
  const head = Math.ceil((most - 1) * 0.45);
  return `${text.slice(0, head)}…${text.slice(text.length - (most - 1 - head))}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "n/a";
  if (seconds < 100) return `${num(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60
    ? `${minutes} min ${Math.floor(seconds % 60)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function bytes(n) {
  for (const [unit, scale] of [
    ["GB", 1e9],
    ["MB", 1e6],
    ["kB", 1e3],
  ]) {
    if (Math.abs(n) >= scale) return `${num(n / scale)} ${unit}`;
  }
  return `${whole(n)} bytes`;
}

/** A colour of the theme, by the name of its CSS variable. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const CURVES = 8;
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3]];
const curveColour = (place) => colour(`s${place % CURVES}`);
const curveDash = (place) => DASHES[Math.floor(place / CURVES) % DASHES.length];

/** Ticks at round numbers. */
function ticks(low, high, most = 6) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const out = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + 1e-9 * step; at += step) {
    out.push(Math.abs(at) < step * 1e-9 ? 0 : Number(at.toPrecision(12)));
  }
  return out;
}

/** Calls `work` once, a little later, however often it is asked. */
function later(work, wait = 120) {
  let timer = null;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, wait);
  };
}

function icon(name) {
  const paths = {
    critical: "M8 1.5 15 14H1L8 1.5ZM8 6v4M8 12v.5",
    warning: "M8 1.5a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13ZM8 4.5v4.5M8 11v.5",
    info: "M8 1.5a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13ZM8 7.5v4M8 4.5V5",
    ok: "M8 1.5a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13ZM5 8.2l2.2 2.2L11 6",
    unknown: "M8 1.5a6.5 6.5 0 1 1 0 13 6.5 6.5 0 0 1 0-13ZM6 6.2a2 2 0 1 1 2.6 2L8 9v.8M8 11.5v.4",
  };
  return h(
    "svg:svg",
    { class: `icon ${name}`, viewBox: "0 0 16 16", "aria-hidden": "true" },
    h("svg:path", {
      d: paths[name] || paths.info,
      fill: "none",
      stroke: "currentColor",
      "stroke-width": 1.5,
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
    }),
  );
}
