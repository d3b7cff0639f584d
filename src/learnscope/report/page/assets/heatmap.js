// A heatmap drawn pixel by pixel: rows are layers (or other scopes), columns are steps.

/**
 * A heatmap with row names, a colour bar, a cursor and a tooltip.
 * options: id, rows (scopes to show), scale, diverging, onrow(scope), selected(), label
 */
function heatmap(grid, options) {
  const map = { grid, options, scale: options.colours || colourScale([grid], options), element: null };
  map.canvas = h("canvas", { class: "cells", "aria-hidden": "true" });
  map.line = h("div", { class: "cursor-line" });
  map.tip = h("div", { class: "tip", hidden: true, role: "status" });
  map.names = h("div", { class: "row-names" });
  map.axis = h("div", { class: "step-axis" });
  map.area = h("div", { class: "cell-area" }, map.canvas, map.line);
  map.element = h(
    "div",
    { class: "heatmap", role: "group", "aria-label": options.label },
    map.names,
    h("div", { class: "cells-and-axis" }, map.area, map.axis),
    map.tip,
  );
  map.area.addEventListener("pointermove", (event) => hover(map, event));
  map.area.addEventListener("pointerleave", () => {
    map.tip.hidden = true;
  });
  map.area.addEventListener("click", (event) => {
    const spot = map.dragged ? null : spotOf(map, event);
    if (spot) options.onrow?.(spot.scope);
  });
  map.area.addEventListener("dblclick", () => zoomTo(options.id, null));
  dragToZoom(map);
  map.draw = () => drawMap(map);
  when("cursor", () => placeCursor(map));
  when("zoom linked", () => map.drawn && drawMap(map));
  when("row", () => markRow(map));
  whenVisible(map.area, map.draw);
  panels.set(options.id, { id: options.id, map, draw: map.draw, element: map.element });
  return map;
}

function rowHeight(n) {
  return n <= 12 ? 26 : n <= 30 ? 20 : n <= 80 ? 15 : n <= 200 ? 6 : 3;
}

function drawMap(map) {
  const rows = map.options.rows;
  const each = rowHeight(rows.length),
    width = map.area.clientWidth,
    height = Math.max(each * rows.length, 24);
  if (!width) return;
  map.drawn = true;
  map.range = zoomOf(map.options.id) || [map.grid.first, map.grid.end];
  map.area.style.height = `${height}px`;
  const ratio = devicePixelRatio || 1;
  map.canvas.width = Math.round(width * ratio);
  map.canvas.height = Math.round(height * ratio);
  paint(map, each * ratio);
  nameRows(map, rows, each);
  map.axis.replaceChildren(
    ...ticks(map.range[0], map.range[1], Math.max(2, Math.floor(width / 110)))
      .filter((step) => step % 1 === 0)
      .map((step) => {
        const share = (step - map.range[0]) / (map.range[1] - map.range[0]);
        return h(
          "span",
          { class: share < 0.02 ? "first" : share > 0.96 ? "last" : null, style: { left: `${share * 100}%` } },
          whole(step),
        );
      }),
  );
  placeCursor(map);
}

/** Which columns of the grid a column of pixels covers. */
function columnsOf(grid, [first, last], pixels) {
  const from = new Int32Array(pixels),
    to = new Int32Array(pixels);
  for (let x = 0; x < pixels; x++) {
    const start = first + (x / pixels) * (last - first),
      end = first + ((x + 1) / pixels) * (last - first);
    from[x] = start < grid.first ? -1 : place(grid.starts, start, true) - 1;
    to[x] = Math.max(from[x] + 1, place(grid.starts, end));
    if (start >= grid.end) from[x] = -1;
  }
  return { from, to };
}

function paint(map, each) {
  const { grid, scale, options } = map;
  const { width, height } = map.canvas;
  const context = map.canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const data = image.data;
  const { from, to } = columnsOf(grid, map.range, width);
  const colours = scale.diverging ? DIVERGING_COLOURS : SEQUENTIAL_COLOURS;
  const [paper, hatch, broken, zero] = ["panel", "hatch", "broken", "zero-cell"].map((name) => rgb(colour(name)));
  const gap = each >= 12 ? 1 : 0;
  const line = new Uint8Array(width * 4);
  options.rows.forEach((scope, r) => {
    const at = grid.scopes.indexOf(scope) * grid.width;
    const top = Math.round(r * each),
      bottom = Math.min(height, Math.round((r + 1) * each) - gap);
    const kind = new Uint8Array(width); // 0 nothing there, 1 not measured, 2 a colour
    for (let x = 0; x < width; x++) {
      if (from[x] < 0) continue;
      let value = NaN;
      for (let c = from[x]; c < to[x]; c++) {
        const v = grid.high[at + c];
        if (Number.isNaN(v)) continue;
        value = Number.isNaN(value) || (scale.diverging ? Math.abs(v) > Math.abs(value) : v > value) ? v : value;
      }
      kind[x] = Number.isNaN(value) ? 1 : 2;
      if (kind[x] === 1) continue;
      const place3 = 3 * Math.round(255 * clamp(scale.of(value), 0, 1));
      const tone = value === Infinity || value === -Infinity ? broken : scale.log && value <= 0 ? zero : null;
      for (let c = 0; c < 3; c++) line[4 * x + c] = tone ? tone[c] : colours[place3 + c];
    }
    for (let y = top; y < bottom; y++) {
      for (let x = 0; x < width; x++) {
        const pixel = 4 * (y * width + x);
        const tone = kind[x] === 2 ? null : kind[x] === 1 && (x + y) % 7 < 2 ? hatch : paper;
        for (let c = 0; c < 3; c++) data[pixel + c] = tone ? tone[c] : line[4 * x + c];
        data[pixel + 3] = 255;
      }
    }
  });
  context.putImageData(image, 0, 0);
}

function rgb(text) {
  const hex = text.replace("#", "");
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function nameRows(map, rows, each) {
  const every = Math.max(1, Math.ceil(13 / each));
  map.names.replaceChildren(
    ...rows
      .map((scope, r) =>
        r % every
          ? null
          : h(
              "button",
              {
                type: "button",
                class: "row-name",
                title: scope,
                "data-row": scope,
                style: {
                  top: `${r * each}px`,
                  height: `${Math.max(each, 13)}px`,
                  "line-height": `${Math.max(each - 1, 13)}px`,
                },
                onclick: () => map.options.onrow?.(scope),
              },
              short(scope, 34),
            ),
      )
      .filter(Boolean),
  );
  map.names.style.height = `${each * rows.length}px`;
  const longest = Math.min(34, Math.max(...rows.map((scope) => scope.length)));
  map.names.style.width = `min(${Math.round(22 + 6.6 * longest)}px, 34vw)`;
  markRow(map);
}

function markRow(map) {
  const row = map.options.selected?.();
  for (const name of map.names.children) name.setAttribute("aria-pressed", String(name.dataset.row === row));
}

function spotOf(map, event) {
  const box = map.area.getBoundingClientRect();
  const rows = map.options.rows,
    each = rowHeight(rows.length);
  const scope = rows[Math.floor((event.clientY - box.top) / each)];
  const step = map.range[0] + ((event.clientX - box.left) / box.width) * (map.range[1] - map.range[0]);
  const at = place(map.grid.starts, step, true) - 1;
  return scope === undefined || at < 0 || step >= map.grid.end
    ? null
    : { scope, at, x: event.clientX, y: event.clientY };
}

function hover(map, event) {
  const spot = map.range && spotOf(map, event);
  map.tip.hidden = !spot;
  if (!spot) return;
  const { grid } = map;
  moveCursor(grid.starts[spot.at]);
  const index = grid.scopes.indexOf(spot.scope) * grid.width + spot.at;
  const [low, high] = [grid.low[index], grid.high[index]];
  const write = grid.scale === "share" && !map.scale.diverging ? percent : num;
  const value = Number.isNaN(high)
    ? "not measured"
    : !Number.isFinite(high)
      ? "not finite"
      : low === high
        ? write(high)
        : `${write(low)} to ${write(high)}`;
  const last = spot.at + 1 < grid.width ? grid.starts[spot.at + 1] - 1 : grid.last;
  const when_ = grid.per > 1 ? steps(grid.starts[spot.at], last) : `step ${whole(grid.starts[spot.at])}`;
  map.tip.replaceChildren(h("b", {}, short(spot.scope, 60)), h("span", {}, `${when_}: ${value}`));
  const box = map.element.getBoundingClientRect();
  map.tip.style.left = `${clamp(spot.x - box.left + 14, 0, Math.max(0, box.width - 240))}px`;
  map.tip.style.top = `${spot.y - box.top + 16}px`;
}

function placeCursor(map) {
  if (!map.range) return;
  const share = state.cursor === null ? -1 : (state.cursor - map.range[0]) / (map.range[1] - map.range[0]);
  map.line.hidden = !(share >= 0 && share <= 1);
  if (!map.line.hidden) map.line.style.transform = `translateX(${share * map.area.clientWidth}px)`;
}

function dragToZoom(map) {
  let start = null;
  const mark = h("div", { class: "drag" });
  const at = (event) => clamp(event.clientX - map.area.getBoundingClientRect().left, 0, map.area.clientWidth);
  map.area.addEventListener("pointerdown", (event) => {
    start = at(event);
    map.dragged = false;
    map.area.setPointerCapture(event.pointerId); // so that a drag may end outside
  });
  map.area.addEventListener("pointermove", (event) => {
    if (start === null || Math.abs(at(event) - start) < 6) return;
    if (!mark.isConnected) map.area.append(mark);
    mark.style.left = `${Math.min(start, at(event))}px`;
    mark.style.width = `${Math.abs(at(event) - start)}px`;
  });
  map.area.addEventListener("pointerup", (event) => {
    if (start !== null && mark.isConnected) {
      map.dragged = true; // the click that follows is the end of the drag
      const step = (x) => map.range[0] + (x / map.area.clientWidth) * (map.range[1] - map.range[0]);
      const span = [start, at(event)].sort((a, b) => a - b).map(step);
      mark.remove();
      zoomTo(map.options.id, span);
    }
    start = null;
  });
}
