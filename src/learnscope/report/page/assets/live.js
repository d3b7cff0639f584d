// The live page: the server says when a run has grown; this asks for what is on the screen, and draws it.

const drawnAt = new Map(); // by panel: the version of the page that its numbers are of
let known = null; // which server, which version and which layout this page is of
let asking = false,
  askAgain = false;

/** Listens to the server, if there is one: a page from a file has none. */
function listen(body) {
  if (!body.live) return;
  know(body);
  const source = new EventSource(`events${location.search}`);
  const say = (text) => {
    const at = document.getElementById("live");
    if (at) at.textContent = text;
  };
  source.addEventListener("changed", (event) => {
    say("live");
    const { server, version } = JSON.parse(event.data);
    if (server !== known.server) loadAll();
    else if (version !== known.version) ask();
  });
  source.addEventListener("problem", (event) => say(short(JSON.parse(event.data).why, 60)));
  source.onopen = () => say("live");
  source.onerror = () => say("not connected");
  const look = later(() => {
    if ([...onScreen()].some((id) => versionOf(id) < known.version)) ask();
  }, 150);
  for (const name of ["scroll", "toggle", "click", "change", "keyup"])
    document.addEventListener(name, look, { capture: true, passive: true });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) ask();
  });
}

function know(body) {
  known = { ...body.live, first: body.live.version };
  drawnAt.clear();
}

const versionOf = (id) => drawnAt.get(id) ?? known.first;

/** One question at a time; what comes meanwhile is asked afterwards. */
async function ask() {
  if (document.hidden) return;
  if (asking) {
    askAgain = true;
    return;
  }
  asking = true;
  try {
    await askOnce();
  } catch {
    // the server is gone or busy: its next event asks again
  } finally {
    asking = false;
    if (askAgain) {
      askAgain = false;
      ask();
    }
  }
}

async function askOnce() {
  const query = new URLSearchParams(location.search);
  query.set("version", known.version);
  query.set("server", known.server);
  const ids = onScreen();
  for (const id of ids) query.append("panel", `${versionOf(id)}:${lastStep(id) ?? ""}:${id}`);
  const response = await fetch(`changes?${query}`);
  if (!response.ok) return;
  const part = await unpack(new Uint8Array(await response.arrayBuffer()));
  live.bytes = part.columns.f.byteLength + part.columns.i.byteLength;
  live.answers += 1;
  if (part.layout !== known.layout) return loadAll();
  known.version = part.version;
  ids.forEach((id) => drawnAt.set(id, part.version));
  return take(part);
}

async function loadAll() {
  const body = await unpack(new Uint8Array(await (await fetch(`data${location.search}`)).arrayBuffer()));
  know(body);
  update(body);
}

/** The ids of the panels that can be seen now, those of heatmaps included. */
function onScreen() {
  const seen = (element) => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.bottom > 0 && box.top < innerHeight;
  };
  const ids = [...document.querySelectorAll("[data-panel]")]
    .filter(seen)
    .map((element) => element.dataset.panel.replace(/^[a-z]+-row\//, ""));
  const maps = [...document.querySelectorAll("[data-grid]")].filter(seen).map((element) => element.dataset.grid);
  return new Set([...ids, ...maps].filter((id) => bodyOf(id)));
}

const WHERE = ["main", "panels", "grids"];
const bodyOf = (id) => WHERE.flatMap((name) => payload[name] || []).find((body) => body.id === id);

/** The last step that all curves of a panel have, if its numbers are exact, so that new ones can be added to them. */
function lastStep(id) {
  const body = bodyOf(id);
  const bodies = body.curves || [body];
  if (body.parts || body.incomplete) return null;
  const ends = bodies.map((each) => {
    const at = column(payload, each.steps);
    return at.length ? at[at.length - 1] : -1;
  });
  const last = Math.min(...ends);
  return last >= 0 ? last : null;
}

function take(part) {
  const signs = () =>
    JSON.stringify([payload.findings?.map((each) => [each.fingerprint, each.severity, each.steps]), payload.breaks]);
  const before = signs();
  Object.assign(payload, settled(part, part.head));
  const rows = new Map(part.rows.map((row) => [row.name, row]));
  if (payload.runs)
    payload.runs = [
      ...payload.runs.map((row) => rows.get(row.name) || row),
      ...part.rows.filter((row) => !payload.runs.some((each) => each.name === row.name)),
    ];
  for (const body of part.panels) grow(bodyOf(body.id), settled(part, body));
  if (signs() !== before)
    update(payload); // findings are marked in many places
  else show(part);
}

/** A copy with numbers in the place of references to columns. */
function settled(part, value, key = "") {
  if (Array.isArray(value))
    return NUMBERS.includes(key) && typeof value[0] === "string"
      ? column(part, value)
      : value.map((each) => settled(part, each));
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, settled(part, each, name)]));
  return value;
}

const NUMBERS = ["steps", "v", "low", "high", "mean", "bad", "confidence", "variability", "correctness", "pixels"];

/** A panel's body with the new numbers: in place of the old ones, or after those that are kept. */
function grow(body, fresh) {
  body.incomplete = false;
  if (fresh.curves) {
    const old = new Map(body.curves.map((each) => [each.name, each]));
    fresh.curves = fresh.curves.map((curve) => grownCurve(old.get(curve.name), curve));
    body.incomplete = fresh.curves.includes(null);
  } else if (fresh.after !== undefined) {
    body.incomplete = String(body.scopes) !== String(fresh.scopes) || !sameBuckets(body, fresh);
    if (!body.incomplete) grownGrid(body, fresh);
  }
  if (body.incomplete) {
    // there is a curve that cannot be added to: the next question asks for all of the panel
    drawnAt.delete(body.id);
    askAgain = true;
    return;
  }
  delete body.low;
  Object.assign(body, fresh, { changed: (body.changed || 0) + 1 });
}

const sameBuckets = (old, fresh) => old && (old.per || 1) === (fresh.per || 1) && !old.low === !fresh.low;

/** A curve with its new buckets, or null if the old ones are of another size. */
function grownCurve(old, fresh) {
  if (fresh.after === undefined) return fresh;
  if (!sameBuckets(old, fresh)) return null;
  const kept = column(payload, old.steps),
    keep = place(kept, fresh.after, true);
  const grown = { ...fresh, steps: joinedNumbers(Float64Array, kept.subarray(0, keep), fresh.steps) };
  for (const key of ["v", "low", "high", "mean"]) {
    if (fresh[key]) grown[key] = joinedNumbers(Float32Array, column(payload, old[key]).subarray(0, keep), fresh[key]);
  }
  return grown;
}

function grownGrid(body, fresh) {
  const steps = column(payload, body.steps);
  const keep = place(steps, fresh.after, true),
    added = fresh.steps.length,
    width = keep + added;
  for (const key of ["low", "high"].filter((name) => fresh[name])) {
    const cells = column(payload, body[key]),
      grown = new Float32Array(width * body.scopes.length);
    body.scopes.forEach((_, row) => {
      grown.set(cells.subarray(row * steps.length, row * steps.length + keep), row * width);
      grown.set(fresh[key].subarray(row * added, (row + 1) * added), row * width + keep);
    });
    fresh[key] = grown;
  }
  fresh.steps = joinedNumbers(Float64Array, steps.subarray(0, keep), fresh.steps);
}

function joinedNumbers(Kind, first, second) {
  const out = new Kind(first.length + second.length);
  out.set(first);
  out.set(second, first.length);
  return out;
}

/** Draws what has changed, and leaves everything else alone. */
function show(part) {
  const ids = new Set(part.panels.map((body) => body.id));
  const whole = payload.main
    ? spanOfBodies(
        payload,
        payload.main.flatMap((body) => body.curves),
      )
    : null;
  for (const [id, panel] of panels) {
    if (!panel.curves || !panel.element.isConnected) continue;
    if (panel.options.span && whole) panel.options.span = whole;
    const body = bodyOf(id);
    if (!body?.curves || (!ids.has(id) && panel.drawn === body.changed)) continue;
    panel.drawn = body.changed;
    panel.curves = body.curves.map((each) => new Curve(payload, each));
    if (!panel.plot) continue;
    if (panel.box.matches(":hover") && panel.plot.series.length - 1 === panel.curves.length) zoomPanel(panel);
    else panel.draw();
  }
  if (part.panels.some((body) => body.where === "grids")) changed("grid", "row");
  renewParts(part);
  moveSlider();
}

const OF_ONE_RUN = [
  ["#verdict", verdictCard, "verdict"],
  [".tiles", tiles, "verdict"],
  ["#checks", checksPart, "checks"],
  ["#cost", costPart, "costs"],
];
const RENEWED = {
  training: OF_ONE_RUN,
  adapters: OF_ONE_RUN,
  runs: [["#verdict", runsHead, "rows"]],
  comparison: [
    ["#verdict", comparisonHead, "rows"],
    ["#differs", differsPart, "rows"],
  ],
};

/** The parts without panels; one that the reader is using stays as it is. */
function renewParts(part) {
  const changedKeys = { ...part.head, ...(part.rows.length ? { rows: true } : {}) };
  for (const [place, make, key] of RENEWED[payload.kind] || []) {
    const old = document.querySelector(place);
    const used =
      old &&
      (old.contains(document.activeElement) ||
        old.querySelector("details[open]") ||
        old.querySelector(".check-say")?.childNodes.length);
    if (key in changedKeys && old && !used) old.replaceWith(make(payload));
  }
  if (payload.kind === "runs" && part.rows.length) changed("pick");
}

function moveSlider() {
  const slider = document.getElementById("step");
  if (!slider) return;
  slider.max = stepSpan(payload)[1];
  if (state.cursor === null) slider.value = slider.max;
}

const live = { answers: 0, bytes: 0 }; // how often the server was asked, and how many bytes of numbers it gave last

/** The way back to all runs, and whether the server is there. */
function liveTools(body) {
  if (!body.live) return null;
  return [
    body.kind === "runs" ? null : h("a", { class: "tool", href: location.pathname }, "all runs"),
    h("span", { class: "pill", id: "live" }, "live"),
  ];
}
