// What the reader has chosen, who is told when it changes, and the address that holds all of it.

const state = {
  cursor: null, // a step
  linked: false, // whether a zoom moves all panels
  zoom: {}, // by panel: [first, last]
  log: {}, // by panel: true or false where it is not the default
  smooth: {}, // by panel: 0 to 0.99
  search: "",
  grid: {}, // by section: the quantity that its heatmap shows
  row: {}, // by section: the row that is open
  open: [], // fingerprints of findings that are open
  at: "", // the part of the page that the address points to
  pick: {}, // by name: other choices, such as a budget or a table
  theme: "",
};

const listeners = new Map();

let collected = null;

/** Calls `work` whenever one of these parts of the state has changed. */
function when(names, work) {
  const mine = names.split(" ");
  for (const name of mine) listeners.set(name, [...(listeners.get(name) || []), work]);
  collected?.push(() =>
    mine.forEach((name) =>
      listeners.set(
        name,
        (listeners.get(name) || []).filter((each) => each !== work),
      ),
    ),
  );
}

/** A function that makes a part of the page again and again; what the part before listened to ends with it. */
function renewed(make) {
  let mine = [];
  return () => {
    mine.forEach((stop) => stop());
    const outer = collected;
    collected = [];
    make();
    mine = collected;
    collected = outer;
    outer?.push(() => mine.forEach((stop) => stop()));
  };
}

function changed(...names) {
  const works = new Set(names.flatMap((name) => listeners.get(name) || []));
  works.forEach((work) => work());
  remember();
}

function choose(part, key, value) {
  if (value === null || value === undefined) delete state[part][key];
  else state[part][key] = value;
  changed(part);
}

function moveCursor(step) {
  if (step === state.cursor) return;
  state.cursor = step;
  changed("cursor");
}

const zoomOf = (id) => (state.linked ? state.zoom.all : state.zoom[id]) || null;
const zoomTo = (id, span) => choose("zoom", state.linked ? "all" : id, span);

/** The state as the part of an address after its #. */
function address() {
  const query = new URLSearchParams();
  if (state.cursor !== null) query.set("step", state.cursor);
  if (state.linked) query.set("linked", "1");
  if (state.search) query.set("search", state.search);
  if (state.theme) query.set("theme", state.theme);
  if (state.open.length) query.set("open", state.open.join(","));
  if (state.at) query.set("at", state.at);
  for (const [id, span] of Object.entries(state.zoom))
    query.set(`zoom:${id}`, span.map((each) => Number(each.toFixed(3))).join(","));
  for (const part of ["log", "smooth", "grid", "row", "pick"]) {
    for (const [id, value] of Object.entries(state[part])) query.set(`${part}:${id}`, String(value));
  }
  return query.toString();
}

/** The inverse of `address`. What is not understood is left out. */
function readAddress(text) {
  const query = new URLSearchParams(text.replace(/^#/, ""));
  Object.assign(state, { zoom: {}, log: {}, smooth: {}, grid: {}, row: {}, pick: {} });
  state.cursor = numberOr(query.get("step"), null);
  state.linked = query.get("linked") === "1";
  state.search = query.get("search") || "";
  state.theme = ["light", "dark"].includes(query.get("theme")) ? query.get("theme") : "";
  state.open = (query.get("open") || "").split(",").filter(Boolean);
  state.at = query.get("at") || "";
  for (const [key, value] of query) {
    const colon = key.indexOf(":");
    const [part, id] = [key.slice(0, colon), key.slice(colon + 1)];
    if (part === "zoom") {
      const span = value.split(",").map(Number);
      if (span.length === 2 && span.every(Number.isFinite) && span[1] > span[0]) state.zoom[id] = span;
    } else if (part === "log") state.log[id] = value === "true";
    else if (part === "smooth") state.smooth[id] = clamp(numberOr(value, 0), 0, 0.99);
    else if (["grid", "row", "pick"].includes(part)) state[part][id] = value;
  }
}

const numberOr = (text, otherwise) =>
  text !== null && text !== "" && Number.isFinite(Number(text)) ? Number(text) : otherwise;

let written = "";
const remember = later(() => {
  written = address();
  if (`#${written}` === location.hash || (!written && !location.hash)) return;
  try {
    history.replaceState(null, "", `#${written}`);
  } catch {
    location.replace(`#${written}`);
  }
}, 150);
