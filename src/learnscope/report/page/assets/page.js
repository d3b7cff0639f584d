// The whole page: its bar, its parts by kind, and the two entry points, render and update.

const KINDS = {
  training: (payload) => [
    verdictCard(payload),
    tiles(payload),
    findingsPart(payload),
    checksPart(payload),
    mainPart(payload),
    layersPart(payload),
    examplesPart(payload),
    numbersPart(payload),
    costPart(payload),
  ],
  audit: (payload) => [
    verdictCard(payload),
    auditCards(payload),
    findingsPart(payload),
    frontierPart(payload),
    unitsPart(payload),
    robustnessPart(payload),
    checksPart(payload),
    oncePart(payload),
    costPart(payload),
  ],
  adapters: (payload) => [
    verdictCard(payload),
    tiles(payload),
    findingsPart(payload),
    checksPart(payload),
    mainPart(payload),
    adapterPart(payload),
    layersPart(payload, "modules", { title: "Modules over steps", grids: moduleGrids(payload) }),
    payload.grids.some((body) => body.family !== "adapters")
      ? layersPart(payload, "layers", { grids: payload.grids.filter((body) => body.family !== "adapters") })
      : null,
    examplesPart(payload),
    numbersPart(payload),
    costPart(payload),
  ],
  comparison: (payload) => [
    comparisonHead(payload),
    rankingPart(payload),
    basesPart(payload),
    differsPart(payload),
    overlaidPart(payload),
    differencePart(payload),
  ],
  runs: (payload) => [
    runsHead(payload),
    runsPart(payload),
    overlaidPart({ ...payload, labels: payload.runs.map((run) => run.name) }, "Losses over each other"),
  ],
};
const LINKS = {
  findings: "Findings",
  checks: "Checks",
  runs: "Runs",
  ranking: "Ranking",
  bases: "Base",
  differs: "Differences",
  curves: "Training",
  frontier: "Bits",
  units: "Units",
  adapters: "Adapters",
  modules: "Modules",
  layers: "Layers",
  examples: "Examples",
  numbers: "Numbers",
  cost: "Cost",
  robustness: "Robustness",
};

let payload = null;

/** Draws a payload; the state is read from the address. */
function render(body) {
  payload = body;
  forget();
  readAddress(location.hash);
  const grave = (body.findings || []).find((finding) => finding.severity !== "info" && finding.acknowledged === null);
  if (!location.hash && grave) state.open = [grave.fingerprint];
  setTheme(state.theme);
  draw();
  if (state.at) requestAnimationFrame(() => goTo(state.at, true));
  document.documentElement.dataset.ready = "yes";
}

/** Draws a newer payload of the same page, with everything the reader has chosen left as it is. */
function update(body) {
  const top = scrollY;
  payload = body;
  forget();
  draw();
  scrollTo(0, top);
}

/** Lets go of everything that belonged to what was drawn before. */
function forget() {
  for (const panel of panels.values()) panel.plot?.destroy();
  listeners.clear();
  panels.clear();
  visible.clear();
  seen.disconnect();
  sized.disconnect();
}

function draw() {
  const parts = (KINDS[payload.kind] || KINDS.training)(payload);
  const root = document.getElementById("page");
  const main = h("main", { id: "main", tabindex: -1 }, parts);
  root.replaceChildren(
    h(
      "a",
      {
        class: "skip",
        href: "#",
        onclick: (event) => {
          event.preventDefault();
          main.focus();
        },
      },
      "Skip to the content",
    ),
    topBar(payload, main),
    main,
    foot(payload),
  );
  when("theme", drawAgain);
}

function foot(payload) {
  return h(
    "footer",
    { class: "foot" },
    `Written ${new Date(payload.written * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC. `,
    payload.live ? "Served by learnscope view. Curves by uPlot (MIT)." : "One file, no network. Curves by uPlot (MIT).",
  );
}

const isDark = () => (state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

function setTheme(theme, tell = false) {
  state.theme = theme;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  if (tell) changed("theme");
}

/** The same with the colours of the other theme: canvases have them painted in. */
function drawAgain() {
  for (const panel of panels.values()) if (panel.plot || panel.map?.drawn) panel.draw();
}

/** Scrolls to a part or a panel, and opens what it is folded into. */
function goTo(id, quiet = false) {
  let target = document.getElementById(id);
  if (!target && id.startsWith("panel-")) {
    for (const details of document.querySelectorAll("details.more")) {
      if (!target) {
        const family = details.id.replace("more-", "");
        const body = payload.panels.find((each) => `panel-${each.id}` === id);
        if (body?.family === family) details.fill();
        target = document.getElementById(id);
      }
    }
  }
  for (const part of ["flat", "once"]) {
    if (!target && payload[part]?.some((each) => `panel-${each.id}` === id)) target = document.getElementById(part);
  }
  if (!target) return;
  target.fill?.();
  for (let up = target.parentElement; up; up = up.parentElement) if (up.tagName === "DETAILS") up.open = true;
  if (!quiet) {
    state.at = id;
    changed("at");
  }
  target.scrollIntoView({
    block: "start",
    behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
  });
  target.classList.add("pointed");
  setTimeout(() => target.classList.remove("pointed"), 1600);
}

/** Paper is white and narrower than most screens: all is drawn for it, and for the screen again afterwards. */
function drawForPaper(printing) {
  document.documentElement.classList.toggle("paper", printing);
  if (printing) document.documentElement.dataset.theme = "light";
  else setTheme(state.theme);
  drawAll();
}

addEventListener("beforeprint", () => drawForPaper(true));
addEventListener("afterprint", () => drawForPaper(false));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (!state.theme) drawAgain();
});
addEventListener("hashchange", () => {
  if (payload && location.hash.replace(/^#/, "") !== written) render(payload);
});

window.learnscope = {
  render,
  update,
  live,
  unpack,
  state,
  panels,
  solveBudget,
  zoomTo,
  drawAll,
  colours: { sequential: SEQUENTIAL_COLOURS, diverging: DIVERGING_COLOURS },
  get payload() {
    return payload;
  },
  get copied() {
    return lastCopied;
  },
};

const inlined = document.getElementById("payload");
if (inlined) {
  unpackText(inlined.textContent)
    .then((body) => {
      inlined.remove();
      render(body);
      listen(body);
    })
    .catch((error) => {
      document
        .getElementById("page")
        .replaceChildren(
          h("main", { class: "noscript" }, h("h1", {}, "This page could not be read"), h("p", {}, String(error))),
        );
      throw error;
    });
}
