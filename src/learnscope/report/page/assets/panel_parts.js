// Parts of a panel of curves: its head with the tools, its legend, keys, and marks behind and over the lines.

function panelHead(payload, panel) {
  const { body } = panel;
  const unit = body.unit ? ` [${body.unit}]` : "";
  const where = body.probe ? `${body.probe}${body.kind && body.kind !== "model" ? ` by ${body.kind}` : ""}` : "";
  const smooth = h("input", {
    type: "range",
    min: 0,
    max: 0.99,
    step: 0.01,
    value: state.smooth[panel.id] || 0,
    class: "smooth",
    "aria-label": `Smoothing of ${body.title}`,
    oninput: (event) => choose("smooth", panel.id, Number(event.target.value) || null),
  });
  const log = h(
    "button",
    {
      type: "button",
      class: "tool",
      "aria-pressed": String(panel.log()),
      "data-tool": "log",
      onclick: () => choose("log", panel.id, !panel.log()),
    },
    "log",
  );
  const reset = h(
    "button",
    {
      type: "button",
      class: "tool",
      "data-tool": "reset",
      hidden: !zoomOf(panel.id),
      onclick: () => zoomTo(panel.id, null),
    },
    "zoom out",
  );
  when("log", () => log.setAttribute("aria-pressed", String(panel.log())));
  when("smooth", () => {
    smooth.value = state.smooth[panel.id] || 0;
  });
  when("zoom linked", () => {
    reset.hidden = !zoomOf(panel.id);
  });
  return h(
    "header",
    { class: "panel-head" },
    h(
      "div",
      { class: "panel-title" },
      h(
        "h3",
        { title: body.title },
        short(body.title, 60),
        body.condition ? h("span", { class: "condition" }, short(body.condition, 60)) : null,
      ),
      body.meaning || where
        ? h(
            "p",
            { class: "meaning" },
            where ? h("span", { class: "probe" }, short(where, 60)) : null,
            body.meaning ? ` ${body.meaning.replaceAll("`", "")}${unit}` : "",
          )
        : null,
    ),
    h(
      "div",
      { class: "tools" },
      reset,
      body.strip ? null : log,
      body.strip
        ? null
        : h("label", { class: "tool-label", title: "Smoothing: an exponential moving average" }, "smooth", smooth),
      copyMenu(() => panelTable(panel), body),
    ),
  );
}

/** The numbers of a panel between the ends of its zoom, as rows. */
function panelTable(panel) {
  const [first, last] = zoomOf(panel.id) || spanOf(panel);
  const rows = [];
  for (const curve of panel.curves) {
    const series = curve.name || panel.body.name || panel.body.title;
    for (let i = place(curve.steps, first); i < curve.steps.length && curve.steps[i] <= last; i++) {
      const exact = curve.per === 1;
      rows.push(
        exact
          ? { series, step: curve.steps[i], value: plain(curve.low[i]) }
          : {
              series,
              step: curve.steps[i],
              low: plain(curve.low[i]),
              high: plain(curve.high[i]),
              measurements: curve.per,
            },
      );
    }
  }
  return rows;
}

const plain = (value) => (Number.isFinite(value) ? Number(value.toPrecision(7)) : null);

function drawLegend(panel) {
  const single = panel.curves.length === 1 && !panel.curves[0].name;
  panel.legend.replaceChildren(
    ...panel.curves.map((curve, i) =>
      h(
        "button",
        {
          type: "button",
          class: "key",
          "aria-pressed": String(!panel.hidden.has(i)),
          title: curve.name,
          onclick: () => {
            if (panel.hidden.has(i)) panel.hidden.delete(i);
            else panel.hidden.add(i);
            drawPanel(panel);
          },
        },
        swatch(placeOf(panel, i)),
        h("span", { class: "name" }, single ? "" : short(curve.name, 40)),
        h("span", { class: "value" }, ""),
      ),
    ),
  );
}

function swatch(i) {
  const dash = curveDash(i)
    .map((each) => each / 1.5)
    .join(" ");
  return h(
    "svg:svg",
    { class: "swatch", viewBox: "0 0 18 8", width: 18, height: 8, "aria-hidden": "true" },
    h("svg:line", {
      x1: 1,
      x2: 17,
      y1: 4,
      y2: 4,
      style: { stroke: `var(--s${i % CURVES})` },
      "stroke-width": 2.5,
      "stroke-dasharray": dash || null,
    }),
  );
}

/** Spans that were not finite, and the spans of findings with their numbers. */
function drawBehind(u, panel) {
  const { ctx } = u;
  const { left, top, width, height } = u.bbox;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  const box = (first, last) => {
    const a = u.valToPos(first, "x", true),
      b = last === null ? left + width : u.valToPos(last, "x", true);
    return [a, Math.max(b - a, 2)];
  };
  for (const mark of panel.options.marks || []) {
    const [x, w] = box(mark.steps[0], mark.steps[1]);
    const wide = mark.steps[1] - mark.steps[0] > 0.6 * (panel.range[1] - panel.range[0]);
    ctx.fillStyle = colour(`${mark.severity}-band`);
    if (!wide) ctx.fillRect(x, top, w, height);
    ctx.fillStyle = colour(mark.severity);
    ctx.fillRect(x, top, w, 2 * (devicePixelRatio || 1));
  }
  for (const { step, place } of panel.options.lines || []) {
    const x = u.valToPos(step, "x", true);
    ctx.strokeStyle = curveColour(place);
    ctx.setLineDash([4, 4]);
    ctx.lineWidth = devicePixelRatio || 1;
    ctx.beginPath();
    ctx.moveTo(x, top);
    ctx.lineTo(x, top + height);
    ctx.stroke();
    ctx.setLineDash([]);
  }
  for (const [first, last] of panel.options.breaks || []) {
    const [x, w] = box(first, last);
    ctx.fillStyle = colour("broken-band");
    ctx.fillRect(x, top, w, height);
  }
  ctx.restore();
}

/** Ticks at the upper edge where a curve is not finite, and numbered flags of findings. */
function drawBad(u, panel) {
  const { ctx } = u;
  const ratio = devicePixelRatio || 1;
  const { left, top, width } = u.bbox;
  ctx.save();
  ctx.fillStyle = colour("broken");
  for (const curve of panel.curves) {
    for (let i = 0; i < curve.bad.length; i += 2) {
      const a = clamp(u.valToPos(curve.bad[i], "x", true), left, left + width),
        b = clamp(u.valToPos(curve.bad[i + 1], "x", true), left, left + width);
      if (curve.bad[i + 1] >= panel.range[0] && curve.bad[i] <= panel.range[1])
        ctx.fillRect(a - ratio, top, Math.max(b - a, 2 * ratio), 4 * ratio);
    }
  }
  const flags = (panel.options.marks || [])
    .map((mark) => ({ mark, x: u.valToPos(mark.steps[0], "x", true) }))
    .filter(({ x }) => x >= left - 1 && x <= left + width + 1)
    .sort((a, b) => a.x - b.x);
  const rows = [];
  for (const { mark, x } of flags) {
    const size = 9 * ratio;
    const at = clamp(x, left + size, left + width - size);
    let row = rows.findIndex((end) => at - size > end);
    if (row < 0) row = rows.push(-Infinity) - 1;
    rows[row] = at + size;
    const y = top + size + 4 * ratio + row * 2.3 * size;
    ctx.beginPath();
    ctx.arc(at, y, size, 0, 2 * Math.PI);
    ctx.fillStyle = colour(mark.severity);
    ctx.fill();
    ctx.fillStyle = colour("on-mark");
    ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.fillText(String(mark.number), at, y + 0.5 * ratio);
  }
  ctx.restore();
}

function plotKeys(event, panel) {
  if (!panel.plot) return;
  const [first, last] = zoomOf(panel.id) || spanOf(panel);
  const move = (by) => {
    const curve = panel.curves.reduce((a, b) => (b.steps.length > a.steps.length ? b : a));
    const at =
      state.cursor === null ? curve.steps.length - 1 : clamp(curve.at(state.cursor) + by, 0, curve.steps.length - 1);
    moveCursor(curve.steps[at]);
  };
  const zoom = (factor) => {
    const middle =
      state.cursor !== null && state.cursor >= first && state.cursor <= last ? state.cursor : (first + last) / 2;
    const [low, high] = spanOf(panel);
    const span = [Math.max(low, middle - (middle - first) * factor), Math.min(high, middle + (last - middle) * factor)];
    zoomTo(panel.id, span[0] <= low && span[1] >= high ? null : span);
  };
  const jump = event.shiftKey ? 10 : 1;
  const keys = {
    ArrowLeft: () => move(-jump),
    ArrowRight: () => move(jump),
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    0: () => zoomTo(panel.id, null),
    Escape: () => zoomTo(panel.id, null),
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
}

/** Calls `draw` when an element is first near the screen, and again when its width changes. */
const visible = new Map();
const seen = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) if (entry.isIntersecting) visible.get(entry.target)?.();
  },
  { rootMargin: "300px" },
);
const sized = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    if (target.drawnWidth && Math.abs(target.drawnWidth - contentRect.width) > 1) visible.get(target)?.();
  }
});

function whenVisible(element, draw) {
  visible.set(element, () => {
    if (!element.clientWidth) return;
    element.drawnWidth = element.clientWidth;
    seen.unobserve(element);
    draw();
  });
  seen.observe(element);
  sized.observe(element);
}

/** Draws what was not drawn yet, such as for a print. */
function drawAll() {
  for (const draw of visible.values()) draw();
}
