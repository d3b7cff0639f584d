// Panels of curves: uPlot draws, this file feeds it the level of detail that the pixels can show.

const panels = new Map(); // by id: what can be redrawn, for the cursor, a theme, a print

/** A panel: title, tools, legend and plot. `body` has id, title, meaning, scale, curves; `curves` may be given ready. */
function curvePanel(payload, body, options = {}) {
  const curves = options.curves || body.curves.map((each) => new Curve(payload, each));
  const panel = { id: body.id, body, curves, options, hidden: new Set(), plot: null, element: null };
  const log = () => state.log[body.id] ?? defaultLog(body, panel.curves);
  panel.log = log;
  panel.legend = h("div", { class: "legend" });
  panel.box = h("div", { class: "plot", tabindex: 0, role: "application", "aria-label": plotLabel(body, curves) });
  panel.box.addEventListener("keydown", (event) => plotKeys(event, panel));
  panel.note = h("p", { class: "panel-note" });
  panel.element = h(
    "section",
    {
      class: `panel ${body.strip ? "strip" : ""} ${options.class || ""}`,
      id: `panel-${body.id}`,
      "data-panel": body.id,
    },
    panelHead(payload, panel),
    panel.legend,
    panel.box,
    panel.note,
  );
  panel.height = options.height || (body.strip ? 84 : 210);
  panel.draw = () => drawPanel(panel);
  when("cursor", () => showCursor(panel));
  when("zoom linked", () => zoomPanel(panel));
  when("log smooth", () => panel.plot && drawPanel(panel));
  panels.set(body.id, panel);
  whenVisible(panel.box, panel.draw);
  return panel.element;
}

function defaultLog(body, curves) {
  const low = Math.min(...curves.map((curve) => minOf(curve.low)));
  const high = Math.max(...curves.map((curve) => maxOf(curve.high)));
  if (body.scale === "log") return low > 0;
  return body.scale === "auto" && low > 0 && high / low > 50;
}

const minOf = (list) => list.reduce((low, value) => (value < low ? value : low), Infinity);
const maxOf = (list) => list.reduce((high, value) => (value > high ? value : high), -Infinity);

function plotLabel(body, curves) {
  return `${body.title}: ${plural(curves.length, "curve")}. Arrow keys move the step cursor, plus and minus zoom, 0 shows everything.`;
}

function spanOf(panel) {
  if (panel.options.span) return panel.options.span;
  const shown = panel.curves.filter((curve) => curve.steps.length);
  const first = Math.min(...shown.map((curve) => curve.first)),
    last = Math.max(...shown.map((curve) => curve.last));
  return first < last ? [first, last] : [first - 1, last + 1];
}

/** Steps and values for what is visible now, one table a curve. */
function tablesOf(panel, [first, last]) {
  const width = Math.max(100, panel.box.clientWidth - 60);
  const weight = state.smooth[panel.id] || 0;
  const most = Math.min(2 * width, Math.max(200, (3 * width) / Math.sqrt(panel.curves.length)));
  const tables = panel.curves.map((curve) => linePoints(curve.view(first, last, most), curve.last, panel.log()));
  const smooth =
    weight > 0
      ? panel.curves.map((curve) => {
          const even = curve.smooth(weight);
          return linePoints(even.view(first, last, most), curve.last, panel.log());
        })
      : [];
  return [...tables, ...smooth].map(([xs, ys]) => [xs, ys]);
}

function drawPanel(panel) {
  const width = panel.box.clientWidth;
  if (!width) return;
  panel.plot?.destroy();
  const all = spanOf(panel);
  const range = zoomOf(panel.id) || all;
  const tables = tablesOf(panel, range);
  const many = panel.curves.length;
  const smooth = tables.length > many;
  const log = panel.log();
  const seriesOf = (place, even) => ({
    label: panel.curves[place].name || panel.body.title,
    stroke: even || !smooth ? curveColour(placeOf(panel, place)) : faded(curveColour(placeOf(panel, place))),
    width: even ? 2 : smooth ? 1 : panel.curves[place].n > 400 ? 1.25 : 1.6,
    dash: curveDash(placeOf(panel, place)),
    show: !panel.hidden.has(place),
    points: {
      show: !even && panel.curves[place].steps.length <= 60,
      size: 4.5,
      fill: curveColour(placeOf(panel, place)),
    },
  });
  const series = [
    {},
    ...panel.curves.map((_, place) => seriesOf(place, false)),
    ...(smooth ? panel.curves.map((_, place) => seriesOf(place, true)) : []),
  ];
  const grid = { stroke: colour("guide"), width: 1 };
  const axis = { stroke: colour("quiet"), grid, ticks: { show: false }, font: "11px system-ui, sans-serif", gap: 6 };
  const yValues =
    panel.body.scale === "share"
      ? (_, at) => at.map((v) => (v === null ? "" : percent(v)))
      : (_, at) => at.map((v) => (v === null ? "" : num(v)));
  panel.plot = new uPlot(
    {
      width,
      height: panel.height,
      series,
      legend: { show: false },
      padding: [8, 10, 0, 0],
      scales: {
        x: { time: false, range: () => panel.range },
        y: log
          ? { distr: 3, range: (u, low, high) => roomyLog(low, high) }
          : { range: (u, low, high) => roomy(low, high, panel.body.scale === "share") },
      },
      axes: [
        {
          ...axis,
          size: panel.body.strip ? 22 : 28,
          space: 70,
          values: (_, at) => at.map((v) => (v === null || v % 1 ? "" : whole(v))),
          show: !panel.options.noAxis,
        },
        {
          ...axis,
          size: 56,
          space: panel.body.strip ? 24 : 34,
          values: yValues,
          grid: { ...grid, show: !panel.body.strip },
          ...(log
            ? { splits: (u, _, low, high) => logTicks(Math.log10(low), Math.log10(high)), filter: (u, at) => at }
            : {}),
        },
      ],
      cursor: { y: false, x: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      hooks: {
        drawClear: [(u) => drawBehind(u, panel)],
        draw: [(u) => drawBad(u, panel)],
        setCursor: [
          (u) => {
            if (u.cursor.left >= 0 && u.cursor.event) moveCursor(nearest(panel, u.posToVal(u.cursor.left, "x")));
          },
        ],
        setSelect: [
          (u) => {
            if (u.select.width < 4) return;
            const span = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
            u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            zoomTo(panel.id, span);
          },
        ],
      },
    },
    uPlot.join(tables),
    panel.box,
  );
  panel.range = range;
  panel.plot.setScale("x", { min: range[0], max: range[1] });
  panel.plot.over.addEventListener("dblclick", () => zoomTo(panel.id, null));
  panel.line = h("div", { class: "cursor-line" });
  panel.plot.over.append(panel.line);
  drawLegend(panel);
  showCursor(panel);
  noteOn(panel, range);
}

/** The place of a curve among the colours: its own where a run keeps its colour in every panel. */
const placeOf = (panel, i) => panel.curves[i].place ?? i;

function faded(tone) {
  return tone.startsWith("#") ? `${tone}66` : tone;
}

/** A range with a little room, so that a flat line is not on the edge. */
function roomy(low, high, share) {
  if (low === null || high === null) return [0, 1];
  const room = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.1 || 1;
  const bottom = low >= 0 && low - room < 0 ? Math.min(low, 0) - room * 0.3 : low - room;
  return [bottom, share && high <= 1 ? Math.min(high + room, 1.02) : high + room]; // no share is above 100 %
}

function roomyLog(low, high) {
  if (low === null || high === null || !(low > 0)) return [0.1, 1];
  const room = Math.max((high / low) ** 0.06, 1.05);
  return [low / room, high * room];
}

function zoomPanel(panel) {
  if (!panel.plot) return;
  const started = performance.now();
  panel.range = zoomOf(panel.id) || spanOf(panel);
  panel.plot.setData(uPlot.join(tablesOf(panel, panel.range)), false);
  panel.plot.setScale("x", { min: panel.range[0], max: panel.range[1] });
  panel.zoomed = performance.now() - started;
  showCursor(panel);
  noteOn(panel, panel.range);
}

/** The measured step nearest to a place, of any curve. */
function nearest(panel, step) {
  let best = null;
  for (const curve of panel.curves) {
    const at = place(curve.steps, step);
    for (const each of [curve.steps[at - 1], curve.steps[at]]) {
      if (each !== undefined && (best === null || Math.abs(each - step) < Math.abs(best - step))) best = each;
    }
  }
  return best;
}

function showCursor(panel) {
  if (!panel.plot) return;
  const left = state.cursor === null ? -1 : panel.plot.valToPos(state.cursor, "x");
  const inside = left >= 0 && left <= panel.plot.over.clientWidth;
  panel.line.hidden = !inside;
  if (inside) panel.line.style.transform = `translateX(${left}px)`;
  panel.curves.forEach((curve, i) => {
    const cell = panel.legend.children[i]?.querySelector(".value");
    if (cell) cell.textContent = valueText(panel, curve);
  });
}

function valueText(panel, curve) {
  if (!curve.steps.length) return "no data";
  const write = panel.body.scale === "share" ? percent : num;
  const at = state.cursor === null ? curve.steps.length - 1 : curve.at(state.cursor);
  if (at < 0) return "–";
  const step = state.cursor === null ? curve.last : state.cursor;
  for (let i = 0; i < curve.bad.length; i += 2)
    if (step >= curve.bad[i] && step <= curve.bad[i + 1]) return "not finite";
  const [low, high] = [curve.low[at], curve.high[at]];
  if (Number.isNaN(low)) return "not measured";
  return write(low) === write(high) ? write(low) : `${write(low)} to ${write(high)}`;
}

function noteOn(panel, [first, last]) {
  const notes = [panel.body.note || ""];
  const coarse = panel.curves.filter((curve) => curve.per > 1);
  const shown = coarse.length ? coarse[0].view(first, last, 1e9) : null;
  if (shown && shown.to - shown.from < 400)
    notes.push(`Each point here is ${plural(coarse[0].per, "measurement")}, drawn from its lowest to its highest.`);
  if (panel.log()) {
    const hidden = panel.curves.filter((curve) => minOf(curve.low) <= 0).length;
    if (hidden) notes.push("A logarithmic scale has no place for values of 0 and below.");
  }
  panel.note.textContent = notes.filter(Boolean).join(" ");
  panel.note.hidden = !panel.note.textContent;
}
