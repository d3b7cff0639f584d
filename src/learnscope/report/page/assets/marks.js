// Small drawings in SVG: sparklines, and scatter plots with labels that do not lie on each other.

/** A small line with the span of a finding behind it. */
function sparkline(spark, span, width = 120, height = 28) {
  if (!spark || spark.steps.length < 2) return h("span", { class: "spark empty", "aria-hidden": "true" });
  const { steps: at, low, high } = spark;
  const [first, last] = [at[0], at[at.length - 1]];
  const floor = Math.min(...low),
    top = Math.max(...high);
  const log = floor > 0 && top / floor > 50;
  const scale = (value) => (log ? Math.log10(value) : value);
  const x = (step) => 1 + ((step - first) / (last - first || 1)) * (width - 2);
  const y = (value) => height - 2 - ((scale(value) - scale(floor)) / (scale(top) - scale(floor) || 1)) * (height - 4);
  const points = at.flatMap((step, i) =>
    low[i] === high[i]
      ? [[step, low[i]]]
      : [
          [step, low[i]],
          [step, high[i]],
        ],
  );
  const path = points
    .map(([step, value], i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`)
    .join("");
  const band =
    span && span[1] >= first && span[0] <= last
      ? h("svg:rect", {
          x: x(Math.max(first, span[0])) - 1,
          y: 0,
          width: Math.max(2.5, x(Math.min(last, span[1])) - x(Math.max(first, span[0])) + 1),
          height,
          class: "spark-span",
        })
      : null;
  return h(
    "svg:svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    band,
    h("svg:path", { d: path, class: "spark-line" }),
  );
}

/** Positions for labels so that none lies on another or on a point; those without room get none. */
function placeLabels(points, width, height, size = 11) {
  const taken = points.map((point) => [point.x - 6, point.y - 6, point.x + 6, point.y + 6]);
  const free = (box) =>
    box[0] >= 0 &&
    box[2] <= width &&
    box[1] >= 0 &&
    box[3] <= height &&
    taken.every((other) => box[2] <= other[0] || box[0] >= other[2] || box[3] <= other[1] || box[1] >= other[3]);
  return points.map((point) => {
    const w = point.label.length * size * 0.56 + 4;
    const around = [];
    for (const far of [9, 20, 34, 50, 68]) {
      around.push(
        [far, size * 0.36, "start"],
        [-far, size * 0.36, "end"],
        [0, -far, "middle"],
        [0, far + size * 0.6, "middle"],
        [far * 0.8, -far * 0.8, "start"],
        [-far * 0.8, -far * 0.8, "end"],
        [far * 0.8, far, "start"],
        [-far * 0.8, far, "end"],
      );
    }
    for (const [dx, dy, anchor] of around) {
      const x = point.x + dx,
        y = point.y + dy;
      const left = anchor === "start" ? x : anchor === "end" ? x - w : x - w / 2;
      const box = [left, y - size, left + w, y + 3];
      if (free(box)) {
        taken.push(box);
        return { x, y, anchor, far: Math.hypot(dx, dy) > 16 };
      }
    }
    return null;
  });
}

/**
 * A scatter plot. Points: {x, y, low, high, label, place (colour), star, hollow, title}.
 * Options: x and y labels, logX, logY, limit {y, label}, line (points joined), format functions, onpick(point).
 */
function scatter(points, options, width, height = 360) {
  const pad = { left: 76, right: 18, top: 14, bottom: 44 };
  const sized = points.filter(
    (point) =>
      Number.isFinite(point.x) &&
      Number.isFinite(point.y) &&
      (!options.logX || point.x > 0) &&
      (!options.logY || point.y > 0),
  );
  const axisX = axis(
    sized.map((p) => p.x),
    options.logX,
    pad.left,
    width - pad.right,
  );
  const ends = sized.flatMap((p) => [p.y, p.low, p.high]).filter((v) => Number.isFinite(v) && (!options.logY || v > 0));
  if (options.limit) ends.push(options.limit.y);
  const axisY = axis(ends, options.logY, height - pad.bottom, pad.top);
  const svg = h("svg:svg", {
    class: "scatter",
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "img",
    "aria-label": options.title,
  });
  const ticksX = options.ticksX || axisX.ticks.map((at) => ({ at, label: (options.formatX || num)(at) }));
  for (const tick of ticksX) {
    const x = axisX(tick.at);
    svg.append(
      h("svg:line", { x1: x, x2: x, y1: pad.top, y2: height - pad.bottom, class: "guide" }),
      h("svg:text", { x, y: height - pad.bottom + 17, class: "tick", "text-anchor": "middle" }, tick.label),
    );
  }
  for (const tick of axisY.ticks) {
    svg.append(
      h("svg:line", { x1: pad.left, x2: width - pad.right, y1: axisY(tick), y2: axisY(tick), class: "guide" }),
      h(
        "svg:text",
        { x: pad.left - 8, y: axisY(tick) + 4, class: "tick", "text-anchor": "end" },
        (options.formatY || num)(tick),
      ),
    );
  }
  svg.append(
    h(
      "svg:text",
      { x: (pad.left + width - pad.right) / 2, y: height - 6, class: "axis-name", "text-anchor": "middle" },
      options.x,
    ),
    h(
      "svg:text",
      {
        x: 0,
        y: 0,
        class: "axis-name",
        "text-anchor": "middle",
        transform: `translate(13 ${(pad.top + height - pad.bottom) / 2}) rotate(-90)`,
      },
      options.y,
    ),
  );
  if (options.limit) {
    svg.append(
      h("svg:line", {
        x1: pad.left,
        x2: width - pad.right,
        y1: axisY(options.limit.y),
        y2: axisY(options.limit.y),
        class: "limit",
      }),
      h(
        "svg:text",
        { x: width - pad.right - 4, y: axisY(options.limit.y) - 5, class: "tick", "text-anchor": "end" },
        options.limit.label,
      ),
    );
  }
  const line = sized.filter((point) => point.joined).sort((a, b) => a.x - b.x);
  if (line.length > 1) {
    svg.append(
      h("svg:path", {
        class: "frontier",
        d: line.map((p, i) => `${i ? "L" : "M"}${axisX(p.x)} ${axisY(p.y)}`).join(""),
      }),
    );
  }
  const drawn = sized.map((point) => ({
    point,
    x: axisX(point.x),
    y: axisY(point.y),
    label: short(point.label || "", 26),
  }));
  for (const each of drawn) svg.append(mark(each, axisY, options));
  const named = drawn
    .filter((each) => each.label)
    .sort((a, b) => Number(b.point.star || 0) - Number(a.point.star || 0));
  placeLabels(named, width - 4, height - pad.bottom).forEach((spot, i) => {
    if (!spot) return;
    if (spot.far)
      svg.append(h("svg:line", { x1: named[i].x, y1: named[i].y, x2: spot.x, y2: spot.y - 3, class: "leader" }));
    svg.append(
      h(
        "svg:text",
        { x: spot.x, y: spot.y, "text-anchor": spot.anchor, class: `dot-label${named[i].point.star ? " strong" : ""}` },
        named[i].label,
      ),
    );
  });
  return svg;
}

function mark({ point, x, y }, axisY, options) {
  const tone = point.colour || `var(--s${(point.place || 0) % CURVES})`;
  const group = h("svg:g", { class: "dot", tabindex: options.onpick ? 0 : null });
  if (Number.isFinite(point.low) && Number.isFinite(point.high) && point.high > 0) {
    const bottom = options.logY ? Math.max(point.low, 10 ** axisY.low) : point.low;
    group.append(
      h("svg:line", {
        x1: x,
        x2: x,
        y1: axisY(bottom),
        y2: axisY(point.high),
        style: { stroke: tone },
        class: "whisker",
      }),
    );
  }
  if (point.star) {
    const tips = Array.from({ length: 10 }, (_, i) => {
      const r = i % 2 ? 4.4 : 10,
        angle = (Math.PI * i) / 5 - Math.PI / 2;
      return `${(x + r * Math.cos(angle)).toFixed(1)},${(y + r * Math.sin(angle)).toFixed(1)}`;
    });
    group.append(h("svg:polygon", { points: tips.join(" "), style: { fill: tone }, class: "star" }));
  } else {
    group.append(
      h("svg:circle", {
        cx: x,
        cy: y,
        r: options.radius || 5,
        style: { stroke: tone, fill: point.hollow ? "var(--panel)" : tone },
      }),
    );
  }
  group.append(h("svg:title", {}, point.title || point.label || ""));
  if (options.onpick) group.addEventListener("click", () => options.onpick(point));
  return group;
}

/** A function from values to pixels, with its ticks; a little room on both sides. */
function axis(values, log, from, to) {
  const scale = (value) => (log ? Math.log10(value) : value);
  let low = Math.min(...values.map(scale)),
    high = Math.max(...values.map(scale));
  if (!Number.isFinite(low)) [low, high] = [0, 1];
  if (low === high)
    [low, high] = log ? [low - 0.5, high + 0.5] : [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1];
  const room = (high - low) * 0.06;
  low -= room;
  high += room;
  const at = (value) => from + ((scale(value) - low) / (high - low)) * (to - from);
  at.low = low;
  at.ticks = log ? logTicks(low, high) : ticks(low, high, 6);
  return at;
}

function logTicks(low, high) {
  const out = [];
  const every = Math.max(1, Math.ceil((high - low) / 6));
  for (let power = Math.ceil(low); power <= Math.floor(high); power += every) out.push(10 ** power);
  if (high - low > 2.2 || out.length > 3) return out;
  const finer = [];
  for (let power = Math.floor(low); power <= Math.ceil(high); power++) {
    for (const factor of high - low > 1.2 ? [1, 3] : [1, 2, 5]) {
      const at = factor * 10 ** power;
      if (Math.log10(at) >= low && Math.log10(at) <= high) finer.push(Number(at.toPrecision(6)));
    }
  }
  return finer.length > 1 ? finer : ticks(10 ** low, 10 ** high, 4).filter((each) => each > 0);
}
